"""The way of an adapter into service, over a fresh database, an empty Redis and a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from db.session import Database
from tests.support.databases import SharedDatabase
from tests.support.onboarding import Scene, scene
from tests.support.s3_server import S3Server, start_s3_server


@pytest.fixture
async def place(
    shared_database: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    async with scene(database, redis_client, redis_url, tmp_path, shared=shared_database) as opened:
        yield opened


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = start_s3_server()
    yield server
    server.kill()
