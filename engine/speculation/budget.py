"""Decides how many drafts a step gets: as many as make its tokens cheapest, by measured times of steps.

A step with drafts yields its rows and the drafts expected to be accepted, and takes longer than one without.
Both times are measured by size; steps that compute prompts are left out.

Placeholders yield nothing in their own step, and drafts in the next one. A row's are as many as would be best
if it always had so many: see `choose_placeholders`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

MIN_GAIN = 1.05
"""Tokens per second with drafts over those without, as predicted: below it nothing is drafted."""
FIRST_SLOPE = 0.3
"""Before steps of several sizes were measured: the part of a step's time that grows with its tokens."""
FIRST_PRICE = 0.1
"""Of a placeholder, before any step with drafts was measured: a draft adapter was trained to be worth its
time, so it is tried, within what its guesses may lose."""
PROBE_SECONDS = 5.0
"""While steps have drafts, some without are measured this often."""
PROBE_STEPS = 3
_KEPT = 0.9
_DOUBT = 2.0
"""A size of step that took longer than estimated is believed like so many estimates: first steps of a size
are slow, and one that is never tried again stays so.
"""
_LONGEST = 3.0
"""Times of steps are cut to so many times the usual: a pause of the process is none of theirs."""
_UNUSUAL = 1.5
"""What a step says about other sizes is cut to so many times the estimate."""
_SIZES_PER_DOUBLING = 4


@cache
def _size_class(num_tokens: int) -> int:
    """Returns the number of a class of about equal sizes."""
    return num_tokens if num_tokens < 8 else round(_SIZES_PER_DOUBLING * math.log2(num_tokens)) - 4


def _moved(before: float, seconds: float, kept: float) -> float:
    """Returns a mean that a step has moved."""
    return before * kept + min(seconds, _LONGEST * before) * (1 - kept)


class StepCosts:
    """Seconds of steps without and with drafts, by their tokens."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}
        self._drafted: dict[int, float] = {}
        self._num_drafted: dict[int, int] = {}
        """Steps behind each of these."""
        self._loaded: set[int] = set()
        """Numbers of tokens at which a step with drafts has run."""
        # Of steps with drafts, decaying: sums of 1, x, y, x x, x y for seconds y over tokens x.
        self._sums = [0.0] * 5

    def add(self, num_rows: int, num_tokens: int, has_drafts: bool, seconds: float) -> None:
        """Notes the time of a step of so many rows, and so many tokens with their drafts."""
        if seconds <= 0:
            return
        size = _size_class(num_tokens)
        if has_drafts:
            self._add_drafted(size, num_rows, num_tokens, seconds)
        else:
            self._plain[size] = _moved(self._plain.get(size, seconds), seconds, _KEPT)

    def _add_drafted(self, size: int, num_rows: int, num_tokens: int, seconds: float) -> None:
        before = self._drafted.get(size)
        if self.plain(num_rows) is not None:
            estimate = self.drafted(num_tokens, num_rows)
            if before is None and num_tokens not in self._loaded and seconds > _LONGEST * estimate:
                self._loaded.add(num_tokens)
                return  # it compiled or loaded what later ones find: by its time there would be none
            of_others = min(seconds, _UNUSUAL * estimate)
            terms = (1.0, num_tokens, of_others, num_tokens * num_tokens, num_tokens * of_others)
            self._sums = [0.98 * old + new for old, new in zip(self._sums, terms, strict=True)]
        self._loaded.add(num_tokens)
        num = self._num_drafted[size] = self._num_drafted.get(size, 0) + 1
        before = seconds if before is None else before
        self._drafted[size] = _moved(before, seconds, min(_KEPT, 1 - 1 / num))

    @property
    def has_drafted(self) -> bool:
        """Whether any step with drafts was measured."""
        return bool(self._drafted)

    def plain(self, num_rows: int) -> float | None:
        """Returns the seconds of a step without drafts, of the nearest size that was measured; None: of none
        that is near.
        """
        size = _size_class(num_rows)
        for distance in range(_SIZES_PER_DOUBLING):
            for near in (size + distance, size - distance):
                if near in self._plain:
                    return self._plain[near]
        return None

    def drafted(self, num_tokens: int, num_rows: int) -> float:
        """Returns the seconds of a step with drafts, measured or estimated. Those without are measured."""
        return self.all_drafted(num_rows, range(num_tokens - num_rows, num_tokens - num_rows + 1))[0]

    def all_drafted(self, num_rows: int, nums_drafts: range) -> list[float]:
        """Returns the seconds of steps with so many drafts each."""
        plain = self.plain(num_rows)
        assert plain is not None, "drafts are chosen once steps without are measured"
        at, seconds, slope = self._line(num_rows, plain)
        return [
            self._believed(num_rows + num, max(plain, seconds + slope * (num_rows + num - at)))
            for num in nums_drafts
        ]

    def _believed(self, num_tokens: int, estimate: float) -> float:
        size = _size_class(num_tokens)
        found = self._drafted.get(size)
        if found is None:
            return estimate
        if found <= estimate:
            return found
        num = self._num_drafted[size]
        return estimate + (found - estimate) * num / (num + _DOUBT)

    def _line(self, num_rows: int, plain: float) -> tuple[float, float, float]:
        """Returns some number of tokens, the estimated seconds of a step of so many with drafts, and what
        each more adds.

        A step with drafts takes longer than one without, however few they are: it is waited for.
        """
        slope = FIRST_SLOPE * plain / num_rows
        count, x, y, xx, xy = self._sums
        if not count:
            return num_rows, plain, slope
        spread = xx * count - x * x
        if spread > 0.01 * x * x:
            slope = (xy * count - x * y) / spread
        elif x > num_rows * count:  # one size: at most what it took longer is because of its tokens
            slope = min(slope, (y - plain * count) / (x - num_rows * count))
        return x / count, y / count, max(0.0, slope)


class DraftBudget:
    """Measures steps, and chooses how many drafts the next one gets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._costs = StepCosts()
        # When the last step was planned, its rows and its drafts; None: it is not measured.
        self._last: tuple[float, int, int] | None = None
        self._had_drafts = False
        self._num_probes = 0
        self._probed_at = -math.inf

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: the time since the last one was planned is that one's. Placeholders
        count as drafts.
        """
        now = self._clock()
        if self._last is not None:
            begun, rows, drafts = self._last
            self._costs.add(rows, rows + drafts, drafts > 0, now - begun)
        # The first step without drafts is planned late: it waited for the commit of the one before.
        is_settled = bool(num_drafts) == self._had_drafts
        is_measured = not num_known and (is_settled or num_drafts > 0)
        self._last = (now, num_rows, num_drafts) if is_measured else None
        self._had_drafts = num_drafts > 0
        if not num_drafts:
            self._probed_at = now
            self._num_probes = max(0, self._num_probes - 1)

    def note_pause(self) -> None:
        """Notes that steps do not follow one another."""
        self._last = None

    def choose(self, num_rows: int, chances: Sequence[float]) -> int:
        """Returns how many drafts to take of those with these chances of acceptance, the likeliest first."""
        plain = self._costs.plain(num_rows)
        if plain is None or self._must_probe():
            return 0
        best, best_rate, expected = 0, MIN_GAIN * num_rows / plain, float(num_rows)
        seconds = self._costs.all_drafted(num_rows, range(1, len(chances) + 1))
        for num_drafts, (chance, cost) in enumerate(zip(chances, seconds, strict=True), start=1):
            expected += chance
            rate = expected / cost
            if rate > best_rate:
                best, best_rate = num_drafts, rate
        return best

    def price(self, num_rows: int, num_drafts: int) -> float:
        """Returns what each of so many drafts adds to a step, in tokens of a step without."""
        plain = self._costs.plain(num_rows)
        if plain is None or not num_drafts:
            return 0.0
        added = self._costs.drafted(num_rows + num_drafts, num_rows) - plain
        return max(0.0, added / num_drafts * num_rows / plain)

    def placeholder_price(self, num_rows: int, num_ahead: int) -> float:
        """Returns what a placeholder adds to a step in which every row has so many, as `price` does."""
        price = self.price(num_rows, num_rows * num_ahead)
        return price if self._costs.has_drafted else min(price, FIRST_PRICE)

    def choose_placeholders(self, num_rows: int, price: float, reach: float, chances: Sequence[float]) -> int:
        """Returns how many placeholders a row should have, one for each of `chances` at most. What it does
        not depend on is the other rows' chances: those of one tenant change nothing for another.

        A row with m placeholders alternates between two kinds of steps. In one it has m drafts, guessed in
        the step before, and draws 1 + c1 + .. + cm tokens, where ci is the chance that the first i are all
        accepted. With the chance cm the next step is of that kind again. Otherwise its guesses are of no use,
        and the next step has no drafts, and draws one token. So it draws (1 + c1 + .. + cm + 1 - cm) / (2 -
        cm) tokens per step, and computes m + m / (2 - cm) more than the one it must.

        Args:
            price: of a placeholder, and of a draft.
            reach: the chance that all of the row's drafts in this step are accepted; 1 without any.
            chances: of each guess, that it and all before it are accepted once their turn has come.
        """
        if self._costs.plain(num_rows) is None or self._must_probe():
            return 0
        best, pace, expected = 0, MIN_GAIN, 0.0
        for num, chance in enumerate(chances, start=1):
            expected += chance
            tokens = (2 + expected - chance) / (2 - chance)
            found = tokens / (1 + price * num * (1 + 1 / (2 - chance)))
            if found > pace:
                best, pace = num, found
        # Behind drafts that may be refused, each must be worth its place, and to be verified if they are not.
        return sum(reach * chance > price * pace * (1 + reach) for chance in chances[:best])

    def _must_probe(self) -> bool:
        """Returns whether to leave this step without drafts to measure it."""
        if self._num_probes == 0 and self._clock() - self._probed_at > PROBE_SECONDS:
            self._num_probes = PROBE_STEPS
        return self._num_probes > 0
