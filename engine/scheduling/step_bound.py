"""Keeps steps short while PRIORITY requests arrive, by bounding the rows that other classes may take.

A request waits for the step under way and for its own, and both take longer with every row wherever rows are
what a step's time is spent on: on a CPU nearly always, on a GPU when rows have many adapters or long
contexts. Running requests keep their rows: the bound is reached as they end.
"""

from __future__ import annotations

from engine.protocol import PriorityClass
from engine.request import CLASS_ORDER
from engine.scheduling.fairness import PRIORITY, FairQueue
from engine.scheduling.running import RunningRequests
from engine.scheduling.step_timing import StepTiming

RECENT_SECONDS = 10.0
"""While PRIORITY requests arrived this recently, more are expected."""
MIN_OPEN_DIVISOR = 8
"""One in this many rows stays open to other classes, however long steps take."""

_ORDER = CLASS_ORDER[PRIORITY]


class StepBound:
    """Bounds rows so that steps take `step_seconds` on average."""

    def __init__(
        self, step_seconds: float | None, queue: FairQueue, running: RunningRequests, timing: StepTiming
    ) -> None:
        """`step_seconds`: target for the average step; None: no bound."""
        self._step_seconds = step_seconds
        self._queue = queue
        self._running = running
        self._timing = timing
        self._seen_at = float("-inf")

    def observe(self) -> None:
        """Notes, before each step is planned, whether there are PRIORITY requests."""
        if self._running.num_rows[_ORDER] or self._queue.num_waiting(PRIORITY):
            self._seen_at = self._timing.now

    def is_closed_to(self, priority: PriorityClass) -> bool:
        """Returns whether no further request of a class may take a row for now."""
        return priority is not PRIORITY and self.num_open_rows == 0

    @property
    def num_open_rows(self) -> int:
        """Rows that classes other than PRIORITY may take, beyond those they have."""
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
