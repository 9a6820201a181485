"""How hard a calibration may work beside others: fully while nobody else is served, else a part of the time.

Owns telling from an engine's counters whether it works for others, and the rests that follow from it. What is
behind others in a queue still makes steps longer, and what runs on the engine's own cores takes caches and
memory from it, whatever its priority: the one remedy is to be there seldom. Never not at all: a calibration
beside an engine that is always busy comes to its end, later.

Refuses to know what the work is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.protocol import EngineStats, PriorityClass

SERVING_SHARE = 0.5
"""Of the time, how long a sample is in an engine that works for others."""
REFERENCE_SHARE = 0.1
"""Of the time, how long the reference computes on the cores of such an engine."""
LONGEST_REST = 1.0
"""Seconds after a sample. A long one has been in the engine in small parts, by the share of its class."""
LOOK = 0.1
"""Seconds between two looks whether the others are done: then the rest is over."""
_OTHERS = [str(priority) for priority in PriorityClass if priority is not PriorityClass.FLEX]


class Others:
    """Whether an engine works for anybody but calibrations, as of its last heartbeat."""

    def __init__(self, stats: Callable[[], EngineStats | None]) -> None:
        self._stats = stats
        self._last: EngineStats | None = None
        self._busy = False

    @property
    def are_served(self) -> bool:
        """Calibrations generate nothing, so whatever is generated is for others. An engine that has not told
        yet works for nobody.
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
    """Of one kind of work."""

    others: Others
    share: float
    """Of the time, while others are served; 1: never rests."""
    longest: float = LONGEST_REST
    """Seconds of one rest."""

    @property
    def is_slow(self) -> bool:
        return self.share < 1 and self.others.are_served

    async def rest(self, worked: float) -> None:
        """After `worked` seconds of work, as long as the share asks for; over as soon as nobody else is
        served.
        """
        if self.share >= 1:
            return
        until = time.monotonic() + min(worked * (1 / self.share - 1), self.longest)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not self.others.are_served:
                return
            await asyncio.sleep(min(left, LOOK))
