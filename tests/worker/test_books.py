"""A comparison of the books that an operator asked for, as the worker makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
import redis.asyncio
from celery import Celery

from billing.errors import BooksBusy
from billing.reconciliation.comparing import Comparing
from billing.reconciliation.service import ReconciliationService
from db.outbox import Outbox
from db.session import Database
from db.tasks import RECONCILE_NOW, TaskSender
from tenants.actors import OPERATOR
from worker.tasks import books

T = TypeVar("T")
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Worker:
    """What a worker's process has, in a thread of the test's."""

    database: Database
    redis: redis.asyncio.Redis

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
    yield Comparing(database, redis_client, outbox)
    await outbox.close()
    sender.close()


async def test_it_is_made_once_and_watched(
    comparing: Comparing, database: Database, database_url: str, redis_url: str
) -> None:
    asked = await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    with pytest.raises(BooksBusy):
        await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    for _ in range(2):  # a message may come twice
        assert (await make(database_url, redis_url, asked.ticket)).successful()
    done = await comparing.latest()
    assert done is not None
    assert (done.state, done.num_done) == ("done", done.num_checks)
    kept = await ReconciliationService(database, None).page()  # type: ignore[arg-type]
    assert [report.id for report in kept] == [done.reconciliation_id]
    again = await comparing.start(TODAY - timedelta(days=1), TODAY, OPERATOR)
    assert again.ticket != asked.ticket


async def test_whoever_watches_is_told_that_it_failed(
    comparing: Comparing, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
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
