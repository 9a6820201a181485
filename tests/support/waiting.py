"""Waiting for what another process or task does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def eventually(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 10.0
) -> float:
    """Return how long it took until `holds()`; fail after `seconds`."""
    started = time.monotonic()
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return time.monotonic() - started
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.01)
