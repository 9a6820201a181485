"""How fast the engine has been of late: how long requests keep their rows, how fast prompts are computed, how
many rows its steps get through.

Owns those measurements, and the time as of which they hold. What was seen `HALF_LIFE` seconds ago counts
half; of steps, `STEP_HALF_LIFE`. Refuses to know who waits, and to predict.
"""

from __future__ import annotations

from collections.abc import Callable

HALF_LIFE = 10.0
STEP_HALF_LIFE = 2.0
_FORGOTTEN = 1e-9
"""Of what is left after five minutes nothing is to be concluded."""


class _DecayingRatio:
    """Two sums whose ratio is wanted, of what has been seen lately."""

    __slots__ = ("_half_life", "above", "below", "seen_at")

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self.above = self.below = self.seen_at = 0.0
        self._half_life = half_life

    def add(self, above: float, below: float, now: float) -> None:
        kept = 0.5 ** ((now - self.seen_at) / self._half_life)
        self.above = self.above * kept + above
        self.below = self.below * kept + below
        self.seen_at = now

    def ratio(self) -> float | None:
        return self.above / self.below if self.below > _FORGOTTEN else None


class StepTiming:
    def __init__(self, clock: Callable[[], float], max_batch_tokens: int) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._full = max_batch_tokens / 2
        self._stays = _DecayingRatio()
        self._prompts = _DecayingRatio()
        self._steps = _DecayingRatio(STEP_HALF_LIFE)
        # When the step planned last began, if it was full of prompts and there was more to do after it.
        self._full_since: float | None = None
        self._full_tokens = 0
        # When the step planned last began, if rows go on after it, and how many were in it.
        self._busy_since: float | None = None
        self._num_rows = 0
        self.now = clock()
        """As of the last look."""

    def read_clock(self) -> float:
        """What time it is."""
        self.now = self._clock()
        return self.now

    def begin_step(self) -> None:
        """A step is about to be planned: what the last one took is known."""
        self.read_clock()
        if self._full_since is not None and self.now > self._full_since:
            self._prompts.add(self._full_tokens, self.now - self._full_since, self.now)
        if self._busy_since is not None and self.now > self._busy_since:
            self._steps.add(self._num_rows, self.now - self._busy_since, self.now)
        self._full_since = self._busy_since = None

    def end_step(self, num_tokens: int, num_rows: int, has_more_work: bool) -> None:
        """A step with so many known tokens and so many rows is planned. What a full one takes tells how fast
        prompts are, and what any does after which a row `has_more_work`, how long steps are.
        """
        if num_tokens >= self._full:
            self._full_since, self._full_tokens = self.now, num_tokens
        if has_more_work:
            self._busy_since, self._num_rows = self.now, num_rows

    def record_stay(self, entered_at: float, ended: bool) -> None:
        """A request has left its row: for ever, or `ended` is False and it will need one again."""
        self._stays.add(self.now - entered_at, ended, self.now)

    @property
    def row_seconds(self) -> float | None:
        """How long a request keeps a row, all its stays together. None where nothing is known."""
        return self._stays.ratio()

    @property
    def prompt_rate(self) -> float | None:
        """Tokens per second of steps full of prompts. None where nothing is known."""
        return self._prompts.ratio()

    @property
    def row_rate(self) -> float | None:
        """Rows per second of steps: a step of as many would take about a second, were all time spent on rows.
        None where nothing is known.
        """
        return self._steps.ratio()
