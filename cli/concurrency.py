"""Awaits and cancels groups of asyncio tasks, so that none is left running after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def run_together(*work: Coroutine[None, None, None]) -> None:
    """Awaits all of it; at the first failure cancels the rest and raises that failure."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Task[T]) -> None:
    """Cancels tasks repeatedly until they end: in Python 3.11 `asyncio.wait_for` swallows a cancellation that
    arrives together with its result, and client libraries use it everywhere.
    """
    pending: set[asyncio.Task[T]] = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieved, so that asyncio does not log them
