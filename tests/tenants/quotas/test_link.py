"""When Redis counts as away: it does not answer, though we look."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis

from tenants.quotas.link import Link, LinkDown
from tenants.quotas.scripts import command
from tests.support.waiting import eventually

PATIENCE = 0.3


async def test_standing_still_ourselves_is_not_its_silence(redis_url: str) -> None:
    """The answer comes after the patience, most of which this process has slept through."""
    link = Link(redis_url, [], timeout=PATIENCE, on_up=lambda: None)
    link.start()
    other = redis.Redis.from_url(redis_url)
    try:
        await eventually(lambda: link.up)
        other.execute_command("CLIENT", "PAUSE", 500)
        asked = link.call(command(b"PING"))
        await asyncio.sleep(0)  # it is sent
        time.sleep(0.45)  # noqa: ASYNC251  the loop stands still
        assert await asked == b"PONG"
    finally:
        other.close()
        await link.close()


async def test_no_answer_is_noticed_in_time(redis_url: str) -> None:
    link = Link(redis_url, [], timeout=PATIENCE, on_up=lambda: None)
    link.start()
    other = redis.Redis.from_url(redis_url)
    try:
        await eventually(lambda: link.up)
        other.execute_command("CLIENT", "PAUSE", 1500)  # milliseconds; it ends by itself
        with pytest.raises(LinkDown, match="no answer"):
            await link.call(command(b"PING"))
        assert not link.up
    finally:
        other.close()
        await link.close()
