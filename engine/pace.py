"""How fast the engine has been of late: how long requests keep their rows, how fast prompts are computed.

Owns those two measurements, and the time as of which they hold. What was seen `HALF_LIFE` seconds ago counts
half. Refuses to know who waits, and to predict.
"""

from __future__ import annotations

from collections.abc import Callable

HALF_LIFE = 10.0
_FORGOTTEN = 1e-9
"""Of what is left after five minutes nothing is to be concluded."""


class _Recent:
    """Two sums whose ratio is wanted, of what has been seen lately."""

    __slots__ = ("above", "below", "seen_at")

    def __init__(self) -> None:
        self.above = self.below = self.seen_at = 0.0

    def add(self, above: float, below: float, now: float) -> None:
        kept = 0.5 ** ((now - self.seen_at) / HALF_LIFE)
        self.above = self.above * kept + above
        self.below = self.below * kept + below
        self.seen_at = now

    def ratio(self) -> float | None:
        return self.above / self.below if self.below > _FORGOTTEN else None


class Pace:
    def __init__(self, clock: Callable[[], float], max_batch_tokens: int) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._full = max_batch_tokens / 2
        self._stays = _Recent()
        self._prompts = _Recent()
        # When the step planned last began, if it was full of prompts and there was more to do after it.
        self._full_since: float | None = None
        self._full_tokens = 0
        self.now = clock()
        """As of the last look."""

    def look(self) -> float:
        """What time it is."""
        self.now = self._clock()
        return self.now

    def begin_step(self) -> None:
        """A step is about to be planned: what the last one took is known."""
        self.look()
        if self._full_since is not None and self.now > self._full_since:
            self._prompts.add(self._full_tokens, self.now - self._full_since, self.now)
        self._full_since = None

    def end_step(self, num_tokens: int) -> None:
        """A step with so many known tokens is planned. What a full one takes tells how fast prompts are."""
        if num_tokens >= self._full:
            self._full_since, self._full_tokens = self.now, num_tokens

    def note_stay(self, entered_at: float, ended: bool) -> None:
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
