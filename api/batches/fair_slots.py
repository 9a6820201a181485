"""Shares the lines that a process runs at the same time fairly between tenants, and adapts a batch's own
number to what the engine has room for.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque


class FairSlots:
    """At most `total` lines at the same time. A slot that becomes free goes to the waiting tenant that holds
    the fewest.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, tenant_id: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            self._held[tenant_id] += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(tenant_id)
            else:
                self._forget(tenant_id, waiter)
            raise

    def release(self, tenant_id: str) -> None:
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        self._free += 1
        while self._free and self._waiting:
            chosen = min(self._waiting, key=lambda tenant: self._held[tenant])
            waiter = self._waiting[chosen][0]
            self._forget(chosen, waiter)
            if not waiter.done():
                self._free -= 1
                self._held[chosen] += 1
                waiter.set_result(None)

    def _forget(self, tenant_id: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant_id)
        if queue is None or waiter not in queue:
            return
        queue.remove(waiter)
        if not queue:
            del self._waiting[tenant_id]


class AdaptiveLimit:
    """How many lines of a batch run at the same time: one more for every round that the engine took, half as
    many when it had no room.
    """

    COOLDOWN = 0.5
    """Seconds in which refusals count once: they answer requests of the same moment."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._not_before = 0.0
        self._lowered_at = 0.0

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def pause(self) -> float:
        """Returns the seconds until a further line may begin."""
        return max(0.0, self._not_before - time.monotonic())

    def taken(self) -> None:
        """Records that the engine ran a line."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def refused(self, retry_after: float | None) -> None:
        """Records that the engine had no room."""
        now = time.monotonic()
        self._not_before = max(self._not_before, now + min(retry_after or 0.5, 5.0))
        if now - self._lowered_at > self.COOLDOWN:
            self._limit, self._lowered_at = max(1.0, self._limit / 2), now
