"""Waits for the last usage to reach the ledger when `rootstock up` stops, and describes what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine.journal.salvage import PendingUsage, pending_usage
from engine.protocol import JOURNAL_STREAM

_METERING_S = 15.0


async def finish_metering(
    redis_url: str, engine_states: Sequence[Path], is_worker_alive: Callable[[], bool]
) -> str:
    """Waits, with a limit, until the worker has moved the engines' last usage from the journal to the ledger;
    describes what is left.

    What is left is not lost: the journal is on disk, and the next start continues with it.
    """
    redis = Redis.from_url(redis_url, socket_timeout=2)
    deadline = time.monotonic() + _METERING_S
    left = 0
    try:
        while left := await redis.xlen(JOURNAL_STREAM):
            if time.monotonic() > deadline or not is_worker_alive():
                break
            await asyncio.sleep(0.05)
    except RedisError:
        return "Redis is away: what it holds is metered after the next start"
    finally:
        await redis.aclose()
    return not_in_ledger(engine_states, left)


def not_in_ledger(engine_states: Sequence[Path], in_journal: int) -> str:
    """Describes what is not billed yet: usage events in the journal, and what killed engines left in their
    folders.
    """
    try:
        pending = [pending_usage(folder) for folder in engine_states]
    except OSError as error:
        return f"an engine's files cannot be read: {error}"
    on_disk = PendingUsage(sum(one.requests for one in pending), sum(one.events for one in pending))
    left = [
        f"{number} {what}"
        for number, what in (
            (on_disk.requests, "requests in flight on the engines' disk"),
            (on_disk.events, "usage events on the engines' disk"),
            (in_journal, "usage events in the journal"),
        )
        if number
    ]
    return f"the next start bills {', '.join(left)}" if left else "all usage is in the ledger"
