"""Shares a limited number of concurrent slots fairly among owners: an owner's burst waits behind its own
tasks.

An owner takes one of its own slots first and then one of the common slots, both in FIFO order: however many
tasks an owner has waiting, at most its own number of slots are in the common queue.
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
    """Tasks that hold or await one of the slots."""


class OwnerSlots:
    """`total` slots, at most `per_owner` of them held by one owner."""

    def __init__(self, total: int, per_owner: int) -> None:
        self._common = asyncio.Semaphore(total)
        self._per_owner = per_owner
        self._queues: dict[str, _Queue] = {}

    @asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        """Holds one of the owner's slots during the block; waits for it."""
        queue = self._queues.setdefault(owner, _Queue(asyncio.Semaphore(self._per_owner)))
        queue.tasks += 1
        try:
            async with queue.slots, self._common:
                yield
        finally:
            queue.tasks -= 1
            if not queue.tasks:
                del self._queues[owner]
