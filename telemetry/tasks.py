"""Awaits and cancels groups of asyncio tasks, so that none is left running after a failure or a close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, overload

AGAIN_SECONDS = 0.5

_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")


@overload
async def gather_all(first: Awaitable[_A], second: Awaitable[_B], /) -> tuple[_A, _B]: ...
@overload
async def gather_all(
    first: Awaitable[_A], second: Awaitable[_B], third: Awaitable[_C], /
) -> tuple[_A, _B, _C]: ...
@overload
async def gather_all(
    first: Awaitable[_A], second: Awaitable[_B], third: Awaitable[_C], fourth: Awaitable[_D], /
) -> tuple[_A, _B, _C, _D]: ...
@overload
async def gather_all(*work: Awaitable[_A]) -> tuple[_A, ...]: ...
async def gather_all(*work: Awaitable[Any]) -> tuple[Any, ...]:
    """Returns the results of all of it, or raises the first error in their order once all have ended.

    `asyncio.gather` raises at once and leaves the rest running: they would hold connections of a pool after
    their request is answered, or when the pool is closed.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return tuple(results)


async def run_together(*work: Coroutine[None, None, _A]) -> list[_A]:
    """Returns the results of all of it; at the first failure cancels the rest and raises that failure."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return [task.result() for task in tasks]
    finally:
        await discard(*tasks)


async def discard(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks as `cancel` does, and drops what they return or raise; asyncio would log it."""
    await cancel(*tasks)
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels tasks repeatedly until they end. One cancellation can be lost: where it arrives together with a
    timeout's result (`asyncio.wait_for` in Python 3.11), or as an error of a client library's connection.

    Not for tasks that take longer than `AGAIN_SECONDS` to tidy up: a cancellation would end that, too.
    """
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
