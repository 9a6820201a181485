"""Batches over a real database and object store, and an engine that plays scripts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import text

from adapters.files.ingestion import FileIngestion
from adapters.files.service import FileService, UploadService
from adapters.storage import LocalStore
from api.app import create_app
from api.assembly.stored_state import stored_state
from api.batches.execution import BatchSite
from api.batches.fair_slots import FairSlots
from api.batches.runner import BatchRunner, RunnerPace
from api.metrics.batches import BatchMetrics
from batches.service import BatchService
from db.session import EVERY_TENANT, Database
from tenants.context import BillingState, TenantContext
from tenants.errors import InvalidApiKey
from tests.api.conftest import World, build
from tests.api.fakes import KEY
from tests.support.documented import DISAGREEMENTS, Documented
from tests.support.sandboxes import KeptSandbox
from tests.support.text_base import write_base
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

TENANTS = ("ten_one", "ten_two")
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(write_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(autouse=True)
def as_documented() -> Any:
    """Every response of the test is one that the OpenAPI document says."""
    DISAGREEMENTS.clear()
    yield
    assert DISAGREEMENTS == []


def chat_line(custom_id: str, content: str = "hi", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "sapling", "messages": [{"role": "user", "content": content}], **body},
    }


def response_line(custom_id: str, content: Any = "hi", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "sapling", "input": content, **body},
    }


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [chat_line(f"request-{number}", f"hi {number}", **body) for number in range(count)]


def as_jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@dataclass
class Batches:
    """The application with its batches, and runners that tests start."""

    world: World
    database: Database
    store: LocalStore
    ingestion: FileIngestion
    app: Any
    revoked: set[str] = field(default_factory=set)
    """Keys that are refused from now on."""
    refusal: Exception = field(default_factory=InvalidApiKey)
    """With which they are."""
    billing_state: BillingState = "active"
    """Of every account, where lines run."""
    runners: list[BatchRunner] = field(default_factory=list)

    def client(self, key: str = KEY) -> openai.AsyncOpenAI:
        """The stock client."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return openai.AsyncOpenAI(
            base_url="http://test/v1",
            api_key=key,
            max_retries=0,
            http_client=httpx.AsyncClient(transport=transport),  # type: ignore[arg-type]
        )

    async def callers(self, tenant_id: str, created_by: str) -> TenantContext:
        for caller in self.world.keys.callers.values():
            if caller.key_id == created_by and created_by not in self.revoked:
                assert caller.tenant_id == tenant_id
                return dataclasses.replace(caller, billing_state=self.billing_state)
        raise self.refusal

    def site(self, lines_at_once: int = 16) -> BatchSite:
        return BatchSite(
            services=self.world.services,
            database=self.database,
            store=self.store,
            ingestion=self.ingestion,
            callers=self.callers,
            slots=FairSlots(lines_at_once),
            metrics=BatchMetrics(build(self.world.engine.text).services.metrics.registry),
            lines_per_batch=lines_at_once,
        )

    async def start(self, name: str = "api-1", lines_at_once: int = 16, lease: float = 60.0) -> BatchRunner:
        """Leases do not expire by themselves, so that a slow machine changes nothing."""
        runner = BatchRunner(self.site(lines_at_once), name, RunnerPace(lease=lease, poll=0.05))
        await runner.start()
        self.runners.append(runner)
        return runner

    async def kill(self, runner: BatchRunner) -> None:
        """As `kill -9` does: nothing is released or stored any more. Its leases have expired afterwards."""
        self.runners.remove(runner)
        tasks = [task for task in (runner._taking, *runner._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.change(
            "UPDATE batches SET lease_until = now() - interval '1 second' WHERE lease_until > now()"
        )

    async def upload(self, content: bytes, key: str = KEY) -> str:
        made = await self.client(key).files.create(file=("input.jsonl", content), purpose="batch")
        return made.id

    async def create(self, content: bytes, key: str = KEY, **options: Any) -> openai.types.Batch:
        options = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | options
        return await self.client(key).batches.create(input_file_id=await self.upload(content, key), **options)

    async def get(self, batch_id: str, key: str = KEY) -> openai.types.Batch:
        return await self.client(key).batches.retrieve(batch_id)

    async def until(
        self, batch_id: str, holds: Callable[[openai.types.Batch], bool], seconds: float = 60.0
    ) -> openai.types.Batch:
        async def looks() -> bool:
            return holds(await self.get(batch_id))

        await eventually(looks, seconds)
        return await self.get(batch_id)

    async def ended(self, batch_id: str) -> openai.types.Batch:
        return await self.until(batch_id, lambda batch: batch.status in ENDED)

    async def rows(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await self.client().files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]

    async def change(self, statement: str, **values: Any) -> None:
        async with self.database.write(EVERY_TENANT) as session:
            await session.execute(text(statement), values)


@asynccontextmanager
async def open_batches(codec: TextCodec, database: Database, root: Path) -> AsyncIterator[Batches]:
    async with database.write(EVERY_TENANT) as session:
        for tenant in TENANTS:
            await session.execute(text("INSERT INTO tenants (id, name) VALUES (:id, :id)"), {"id": tenant})
    sandbox, store = KeptSandbox(), LocalStore(root)
    world = build(
        codec,
        files=FileService(database, store, sandbox),
        uploads=UploadService(database, store, sandbox),
        batches=BatchService(database, store),
        state=stored_state(database, "s" * 32),
    )
    app = Documented(create_app(world.services))
    opened = Batches(world, database, store, FileIngestion(store, sandbox), app)
    try:
        yield opened
    finally:
        for runner in [*opened.runners]:
            await opened.kill(runner)
        await sandbox.close()


@pytest.fixture
async def place(codec: TextCodec, database: Database, tmp_path: Path) -> AsyncIterator[Batches]:
    async with open_batches(codec, database, tmp_path / "objects") as opened:
        yield opened
