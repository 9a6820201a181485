"""The way of an adapter into service, over a fresh database, an empty Redis and a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from db.session import Database
from tests.support.onboarding import Scene, scene


@pytest.fixture
async def place(
    database: Database, redis_client: redis.asyncio.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    async with scene(database, redis_client, redis_url, tmp_path) as opened:
        yield opened
