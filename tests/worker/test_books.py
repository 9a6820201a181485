"""A comparison of the books that an operator asked for, as the worker makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis.asyncio
from celery import Celery

from billing.errors import ReconciliationRunning
from billing.reconciliation import spools
from billing.reconciliation.comparing import Comparisons
from billing.reconciliation.service import ReconciliationService
from db.outbox import Outbox
from db.session import Database
from db.settings import DatabaseSettings
from db.tasks import RECONCILE_NOW, TaskSender
from tenants.actors import OPERATOR
from worker.runtime import Runtime
from worker.settings import JobsSettings, WorkerSettings
from worker.tasks import books

T = TypeVar("T")
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Worker:
    """What a worker's process has, in a thread of the test's."""

    database: Database
    redis: redis.asyncio.Redis
    engine_endpoints = ("ipc:///nowhere/engine.sock",)

    def begin(self, database_url: str, redis_url: str) -> None:
        self.database = Database(database_url)
        self.redis = redis.asyncio.Redis.from_url(redis_url)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def and_close() -> T:
            try:
                return await work
            finally:
                await self.redis.aclose()
                await self.database.close()

        return asyncio.run(and_close())


WORKER, APP = Worker(), Celery(set_as_current=False)
books.register(APP, WORKER)  # type: ignore[arg-type]


async def make(database_url: str, redis_url: str, ticket: str) -> Any:
    WORKER.begin(database_url, redis_url)
    days = {"start": (TODAY - timedelta(days=1)).isoformat(), "end": TODAY.isoformat()}
    return await asyncio.to_thread(APP.tasks[RECONCILE_NOW].apply, kwargs={"ticket": ticket, **days})


@pytest.fixture
async def comparing(database: Database, redis_client: redis.asyncio.Redis, redis_url: str) -> Any:
    sender = TaskSender(redis_url)
    outbox = Outbox(database, sender)
    yield Comparisons(database, redis_client, outbox)
    await outbox.close()
    sender.close()


async def test_it_is_made_once_and_watched(
    comparing: Comparisons,
    database: Database,
    database_url: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spools, "ANSWERED_WITHIN", 0.2)
    asked = await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    with pytest.raises(ReconciliationRunning):
        await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    for _ in range(2):  # a message may come twice
        assert (await make(database_url, redis_url, asked.ticket)).successful()
    done = await comparing.latest()
    assert done is not None
    assert (done.state, done.num_done) == ("done", done.num_checks)
    kept = await ReconciliationService(database, None).page()  # type: ignore[arg-type]
    assert [report.id for report in kept] == [done.reconciliation_id]
    assert "ipc:///nowhere" in kept[0].outcomes["spools"].why_not, (
        "engines are asked, and this one is not there"
    )
    again = await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    assert again.ticket != asked.ticket


async def test_whoever_watches_is_told_that_it_failed(
    comparing: Comparisons, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)

    async def broken(*_: object) -> None:
        raise ValueError("the books are on fire")

    monkeypatch.setattr(ReconciliationService, "reconcile", broken)
    assert (await make(database_url, redis_url, asked.ticket)).failed()
    failed = await comparing.latest()
    assert failed is not None
    assert (failed.state, failed.why) == ("failed", "the books are on fire")
    assert (await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)).state == "waiting"


def test_engines_are_those_that_are_listed_or_the_one_that_jobs_measure_on(tmp_path: Path) -> None:
    def endpoints(**listed: str) -> tuple[str, ...]:
        settings = WorkerSettings(redis_url="redis://nowhere", **listed)  # type: ignore[arg-type]
        jobs = JobsSettings(
            base_path=tmp_path, base_name="sapling", engine_endpoint="ipc:///one", artifacts_dir=tmp_path
        )
        database = DatabaseSettings(url="postgresql+psycopg://nowhere/n")
        return Runtime(settings, database, jobs, bases=[jobs.first_base]).engine_endpoints

    assert endpoints() == ("ipc:///one",)
    assert endpoints(engine_endpoints="tcp://a:1, tcp://b:1") == ("tcp://a:1", "tcp://b:1")
