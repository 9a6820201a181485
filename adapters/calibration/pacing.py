"""Throttles calibrations while the engine serves other requests: full speed when idle, a share of the time
otherwise.

Reads from the engine's counters whether it serves others, and rests accordingly. Low priority alone is not
enough: queued work still makes steps longer, and work on the engine's own cores takes caches and memory
bandwidth. The share is never zero: a calibration beside a busy engine finishes, but later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import EngineStats, PriorityClass

SERVING_SHARE = 0.5
"""Share of the time that a sample is in an engine that serves others."""
REFERENCE_SHARE = 0.1
"""Share of the time that the reference computes on the cores of such an engine."""
LONGEST_REST = 1.0
"""Seconds of rest after a sample, at most. A long sample enters the engine in small parts, by its tier's
share.
"""
LOOK = 0.1
"""Seconds between two checks whether the engine still serves others; if not, the rest ends."""
_OTHERS = [str(priority) for priority in PriorityClass if priority is not PriorityClass.FLEX]


class OtherTraffic:
    """Tells from an engine's last heartbeat whether it serves anything but calibrations."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats
        self._last: EngineStats | None = None
        self._busy = False

    @property
    def are_served(self) -> bool:
        """True if the engine generates or has waiting requests: calibrations generate nothing, so generated
        tokens are other requests'. False before the first heartbeat.
        """
        now, last = self._stats(), self._last
        if now is None or now is last:
            return self._busy
        self._last = now
        waiting = any(now.waiting.get(name, 0) for name in _OTHERS)
        if last is None or last.incarnation != now.incarnation:
            self._busy = waiting or now.running > 0
        else:
            admitted = any(now.admitted.get(name, 0) > last.admitted.get(name, 0) for name in _OTHERS)
            self._busy = waiting or admitted or now.completion_tokens > last.completion_tokens
        return self._busy


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one kind of work."""

    others: OtherTraffic
    share: float
    """Share of the time while others are served; 1: never rests."""
    longest: float = LONGEST_REST
    """Seconds of one rest, at most."""

    @property
    def is_slow(self) -> bool:
        return self.share < 1 and self.others.are_served

    async def rest(self, worked: float) -> None:
        """Rests after `worked` seconds of work as long as the share requires; ends early when no other
        request is served.
        """
        if self.share >= 1:
            return
        until = time.monotonic() + min(worked * (1 / self.share - 1), self.longest)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not self.others.are_served:
                return
            await asyncio.sleep(min(left, LOOK))
