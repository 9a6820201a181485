"""Shares a bounded number of concurrent slots among owners, so that one owner's flood waits behind its own.

An owner takes one of its own slots first and one of the common slots then, both first come, first served:
however many tasks an owner has waiting, at most its own number of them stand in the common queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Queue:
    slots: asyncio.Semaphore
    tasks: int = 0
    """That hold or await one of the slots."""


class OwnerSlots:
    """`total` slots, at most `per_owner` of them held by one owner."""

    def __init__(self, total: int, per_owner: int) -> None:
        self._common = asyncio.Semaphore(total)
        self._per_owner = per_owner
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Hold one of the owner's slots; waits for it."""
        queue = self._queues.setdefault(owner, _Queue(asyncio.Semaphore(self._per_owner)))
        queue.tasks += 1
        try:
            async with queue.slots, self._common:
                yield
        finally:
            queue.tasks -= 1
            if not queue.tasks:
                del self._queues[owner]
