"""A backup taken under load has every request that was acknowledged up to its moment."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.metering import JournalMeter
from billing.rates import RATE_LABEL
from cli.backup.drill import check
from cli.backup.restoring import restore_to
from cli.local.postgres import serving_url
from db.session import EVERY_TENANT, Database
from engine.client import EngineClient
from tests.billing.invoices.conftest import MICRO_A_TOKEN
from tests.cli.backup.service import Service, Watched, opened, target
from tests.engine.process.engines import EngineProcess, engine_process, read, submission, until

TOKENS = 3


@pytest.fixture
def engine(tmp_path: Path, redis_url: str, servers_dir: Path) -> Iterator[EngineProcess]:
    for process in engine_process(servers_dir, redis_url, null_step_seconds=0.002):
        process.start()
        yield process


class Load:
    """Clients of an engine, a meter, and a tenant that uploads and deletes files; all at once."""

    def __init__(self, service: Service, client: EngineClient) -> None:
        self._service = service
        self._client = client
        self._serial = itertools.count()
        self.acknowledged: dict[str, float] = {}
        """When each request's client had its last token."""
        self._ended = False

    async def run(self) -> None:
        await asyncio.gather(*(self._ask() for _ in range(4)), self._meter(), self._upload())

    def end(self) -> None:
        self._ended = True

    async def _ask(self) -> None:
        while not self._ended:
            request_id = f"req-{next(self._serial)}"
            asked = submission(
                request_id,
                TOKENS,
                tenant=self._service.tenant_id,
                submitted_at=time.time(),
                labels={"key_id": "key_1", "model": "sapling", RATE_LABEL: MICRO_A_TOKEN.label},
            )
            await read(self._client.submit(asked))
            self.acknowledged[request_id] = time.time()

    async def _meter(self) -> None:
        async with redis.asyncio.Redis.from_url(self._service.redis_url) as client:
            meter = JournalMeter(self._service.database, client, "load", batch_size=7)
            while not self._ended:
                await meter.drain(max_batches=1)
                await asyncio.sleep(0.02)

    async def _upload(self) -> None:
        while not self._ended:
            await self._service.upload(b"kept")
            dropped = await self._service.upload(b"dropped")
            await self._service.files.delete(self._service.tenant_id, dropped.id)
            await asyncio.sleep(0.01)


async def test_every_acknowledged_request_is_in_a_backup_under_load(
    service: Service, engine: EngineProcess, empty_database_url: str, tmp_path: Path
) -> None:
    service.environment |= {
        "ROOTSTOCK_ENGINE_ENDPOINT": engine.endpoint,
        "ROOTSTOCK_ENGINE_DATA_DIR": str(engine.folder),
    }
    client = EngineClient(engine.endpoint, "load")
    await client.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
        load = Load(service, client)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.acknowledged) >= 40 or running.done())
        manifest = await service.back_up(tmp_path / "backup")
        load.end()
        await running
    await client.close()
    place = target(empty_database_url, tmp_path / "restored")
    backup = opened(tmp_path / "backup")
    await restore_to(backup, place, Watched())
    assert not [one for one in await check(backup, place, Watched()) if one.num_wrong]
    before = {name for name, moment in load.acknowledged.items() if moment <= manifest.moment.timestamp()}
    assert len(before) >= 40
    assert len(load.acknowledged) > len(before), "there was load while the backup was made"
    restored = Database(serving_url(empty_database_url))
    async with restored.read(EVERY_TENANT) as session:
        rows = await session.execute(text("SELECT request_id, completion_tokens FROM usage_records"))
        tokens = {row[0]: row[1] for row in rows}
    await restored.close()
    assert before <= tokens.keys()
    assert {tokens[name] for name in before} == {TOKENS}
