"""Short steps while PRIORITY requests come: how many rows others may have then.

A request waits for the step that is under way before its own, and both take longer for every row where rows
are what a step's time is spent on: on a CPU nearly always, on a GPU when rows have many adapters or long
contexts. Owns the bound, and noticing that PRIORITY requests come. Refuses to know who has the rows: those
that run are left alone, and the bound is reached as they end.
"""

from __future__ import annotations

from engine.protocol import PriorityClass
from engine.request import CLASS_ORDER
from engine.scheduling.fairness import PRIORITY, FairQueue
from engine.scheduling.running import RunningRequests
from engine.scheduling.step_timing import StepTiming

RECENT_SECONDS = 10.0
"""PRIORITY requests that came so lately are taken for a sign that more will."""
MIN_OPEN_DIVISOR = 8
"""One in so many rows stays open to others, however long steps take."""

_ORDER = CLASS_ORDER[PRIORITY]


class StepBound:
    def __init__(
        self, step_seconds: float | None, queue: FairQueue, running: RunningRequests, timing: StepTiming
    ) -> None:
        """`step_seconds`: what a step is to take at most, on average; None: there is no bound."""
        self._step_seconds = step_seconds
        self._queue = queue
        self._running = running
        self._timing = timing
        self._seen_at = float("-inf")

    def observe(self) -> None:
        """A step is about to be planned."""
        if self._running.num_rows[_ORDER] or self._queue.num_waiting(PRIORITY):
            self._seen_at = self._timing.now

    def is_closed_to(self, priority: PriorityClass) -> bool:
        """Whether no further request of a class is to have a row for now."""
        return priority is not PRIORITY and self.num_open_rows == 0

    @property
    def num_open_rows(self) -> int:
        """Rows that other classes than PRIORITY may take beside those they have."""
        running = self._running
        num_all = len(running.requests)
        num_free = running.max_rows - num_all
        row_rate = self._timing.row_rate
        if (
            self._step_seconds is None
            or row_rate is None
            or self._timing.now - self._seen_at > RECENT_SECONDS
        ):
            return num_free
        num_others = num_all - running.num_rows[_ORDER]
        least = -(-running.max_rows // MIN_OPEN_DIVISOR) - num_others
        return max(0, min(num_free, max(least, int(row_rate * self._step_seconds) - num_all)))
