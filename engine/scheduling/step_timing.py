"""Measures the engine's recent pace: how long requests keep rows, and how fast prompts and rows are computed.

Observations decay: after `HALF_LIFE` seconds they count half; those of steps, after `STEP_HALF_LIFE`.
"""

from __future__ import annotations

from collections.abc import Callable

HALF_LIFE = 10.0
STEP_HALF_LIFE = 2.0
_FORGOTTEN = 1e-9
"""Below this weight, reached after about five minutes, there is no measurement."""


class _DecayingRatio:
    """The ratio of two sums of recent observations."""

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
    """Observes steps and stays, and derives rates from them."""

    def __init__(self, clock: Callable[[], float], max_batch_tokens: int) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._full = max_batch_tokens / 2
        self._stays = _DecayingRatio()
        self._prompts = _DecayingRatio()
        self._steps = _DecayingRatio(STEP_HALF_LIFE)
        # When the last planned step began, if it was full of prompts.
        self._full_since: float | None = None
        self._full_tokens = 0
        # When the last planned step began, if rows have more to do after it, and how many were in it.
        self._busy_since: float | None = None
        self._num_rows = 0
        self.now = clock()
        """The clock as of its last reading."""

    def read_clock(self) -> float:
        """Reads the clock and returns the time."""
        self.now = self._clock()
        return self.now

    def begin_step(self) -> None:
        """Records how long the last step took, before another one is planned."""
        self.read_clock()
        if self._full_since is not None and self.now > self._full_since:
            self._prompts.add(self._full_tokens, self.now - self._full_since, self.now)
        if self._busy_since is not None and self.now > self._busy_since:
            self._steps.add(self._num_rows, self.now - self._busy_since, self.now)
        self._full_since = self._busy_since = None

    def end_step(self, num_tokens: int, num_rows: int, has_more_work: bool) -> None:
        """Notes the step just planned, with its known tokens and rows.

        The time of a full step measures prompts; the time of any step after which a row `has_more_work`
        measures steps.
        """
        if num_tokens >= self._full:
            self._full_since, self._full_tokens = self.now, num_tokens
        if has_more_work:
            self._busy_since, self._num_rows = self.now, num_rows

    def record_stay(self, entered_at: float, ended: bool) -> None:
        """Records that a request left its row; `ended` is False if it will need one again."""
        self._stays.add(self.now - entered_at, ended, self.now)

    @property
    def row_seconds(self) -> float | None:
        """Seconds that a request keeps a row, over all its stays. None: not measured."""
        return self._stays.ratio()

    @property
    def prompt_rate(self) -> float | None:
        """Tokens per second in steps full of prompts. None: not measured."""
        return self._prompts.ratio()

    @property
    def row_rate(self) -> float | None:
        """Rows per second of steps: a step with that many rows would take about a second if all its time were
        spent on rows. None: not measured.
        """
        return self._steps.ratio()
