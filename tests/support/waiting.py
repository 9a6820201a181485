"""Waiting for what another process or task does, and how long that took.

Time is counted in looks of 10 ms. One that took longer counts for 50 ms at most: then the machine was busy
with something else, and what is waited for was not slow. What costs much to look at is looked at less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

LOOK_EVERY = 0.01
COUNTS_AT_MOST = 0.05
PAUSES = 3
"""As long as the look before: a request, say, that would take a whole processor from what is waited for."""


async def eventually(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 30.0
) -> float:
    """Return how long it took until `holds()`; fail after `seconds`."""
    waited, looked_at = 0.0, time.monotonic()
    while True:
        began = time.monotonic()
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return waited
        assert waited < seconds, f"not within {seconds} s"
        await asyncio.sleep(_pause(began, LOOK_EVERY))
        waited, looked_at = _count(waited, looked_at)


def until(
    holds: Callable[[], object], seconds: float = 30.0, what: str = "it", *, look_every: float = LOOK_EVERY
) -> float:
    """The same from outside of any event loop. `look_every` is at most COUNTS_AT_MOST."""
    waited, looked_at = 0.0, time.monotonic()
    while True:
        began = time.monotonic()
        if holds():
            return waited
        assert waited < seconds, f"{what}: not within {seconds} s"
        time.sleep(_pause(began, look_every))
        waited, looked_at = _count(waited, looked_at)


class AwakeClock:
    """The seconds that this event loop lived through, for what cannot be waited for by looking."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AwakeClock:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._ticking is not None
        self._ticking.cancel()

    async def _tick(self) -> None:
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.seconds, looked_at = _count(self.seconds, looked_at)


def _pause(began: float, look_every: float) -> float:
    return min(max(look_every, PAUSES * (time.monotonic() - began)), COUNTS_AT_MOST)


def _count(waited: float, looked_at: float) -> tuple[float, float]:
    now = time.monotonic()
    return waited + min(now - looked_at, COUNTS_AT_MOST), now
