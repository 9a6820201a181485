"""Estimates when an engine that is away will serve again, from how long its last start took."""

from __future__ import annotations

ASSUMED_START = 15.0
"""Seconds that a start is assumed to take until an engine has reported its own."""
RESTART_PAUSE = 1.0
"""Seconds from the end of a process to the start of the next: the supervisor's pause and the interpreter."""
SHORTEST = 1.0


class StartEstimate:
    """The estimate for one engine. Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._start_seconds = ASSUMED_START
        self._lost_at: float | None = now
        """None while it serves."""

    def served(self, start_seconds: float) -> None:
        """Records that it serves, after a start of `start_seconds`; 0: not reported."""
        self._start_seconds = start_seconds or self._start_seconds
        self._lost_at = None

    def lost(self, now: float) -> None:
        self._lost_at = now

    def ready_in(self, now: float) -> float:
        """Returns the seconds until it is likely to serve, if it restarts now or did when it was lost."""
        away = 0.0 if self._lost_at is None else now - self._lost_at
        return max(SHORTEST, self._start_seconds + RESTART_PAUSE - away)
