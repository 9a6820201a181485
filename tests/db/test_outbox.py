"""The outbox over a real PostgreSQL and a real Redis: what is committed is sent, whatever dies in between."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import func, select, text, update

from cli.local.redis import start_redis
from db.outbox import Outbox, OutboxMessage
from db.session import EVERY_TENANT, Database
from db.tasks import JOBS_QUEUE, QUEUE, RUN_JOB, TRACEPARENT, TaskQueueUnavailable, TaskSender
from telemetry.trace_context import TraceContext, in_trace
from tests.support.waiting import eventually


@pytest.fixture
async def outbox(database: Database, redis_url: str) -> AsyncIterator[Outbox]:
    sender = TaskSender(redis_url)
    opened = Outbox(database, sender)
    yield opened
    await opened.close()
    sender.close()


async def queued(client: redis.asyncio.Redis, queue: str = QUEUE) -> list[Any]:
    """(task, keyword arguments) of the messages in a queue, the first sent first."""
    found = []
    for raw in reversed(await client.lrange(queue, 0, -1)):
        message = json.loads(raw)
        headers = message["headers"]
        body = json.loads(base64.b64decode(message["body"]))
        found.append((headers["task"], body[1]))
    return found


async def unsent(database: Database) -> int:
    async with database.read(EVERY_TENANT) as session:
        count = select(func.count()).select_from(OutboxMessage).where(OutboxMessage.sent_at.is_(None))
        return (await session.execute(count)).scalar_one()


async def test_a_message_is_sent_after_the_commit_and_marked(
    database: Database, outbox: Outbox, redis_client: redis.asyncio.Redis
) -> None:
    async with database.write(EVERY_TENANT) as session:
        outbox.add(session, "some.task", {"number": 1})
        await session.flush()
        await asyncio.sleep(0.2)
        assert await queued(redis_client) == []
    await outbox.settle()
    assert await queued(redis_client) == [("some.task", {"number": 1})]
    assert await unsent(database) == 0
    assert await outbox.relay(older_than=0) == 0


async def test_a_message_names_the_span_that_sent_it(
    database: Database, outbox: Outbox, redis_client: redis.asyncio.Redis
) -> None:
    trace = TraceContext("a" * 32, "b" * 16)
    with in_trace(trace):
        async with database.write(EVERY_TENANT) as session:
            outbox.add(session, "traced.task", {})
    async with database.write(EVERY_TENANT) as session:
        outbox.add(session, "untraced.task", {})
    await outbox.settle()
    headers = [json.loads(raw)["headers"] for raw in await redis_client.lrange(QUEUE, 0, -1)]
    assert {one["task"]: one.get(TRACEPARENT) for one in headers} == {
        "traced.task": trace.traceparent,
        "untraced.task": None,
    }


async def test_a_message_rolled_back_is_never_sent(
    database: Database, outbox: Outbox, redis_client: redis.asyncio.Redis
) -> None:
    async def fail() -> None:
        async with database.write(EVERY_TENANT) as session:
            outbox.add(session, "some.task", {})
            await session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await outbox.settle()
    assert await queued(redis_client) == []
    assert await outbox.relay(older_than=0) == 0


async def test_jobs_go_to_a_queue_of_their_own_and_expire(
    database: Database, outbox: Outbox, redis_client: redis.asyncio.Redis
) -> None:
    async with database.write(EVERY_TENANT) as session:
        outbox.add(session, RUN_JOB, {"job_id": "job_1"})
    await outbox.settle()
    assert await queued(redis_client) == []
    assert await queued(redis_client, JOBS_QUEUE) == [(RUN_JOB, {"job_id": "job_1"})]
    (raw,) = await redis_client.lrange(JOBS_QUEUE, 0, -1)
    assert json.loads(raw)["headers"]["expires"] is not None


async def test_while_redis_is_away_nobody_waits_and_the_relay_sends_later(
    database: Database, servers_dir: Path
) -> None:
    directory = servers_dir / "outbox"
    server = start_redis(directory)
    sender = TaskSender(server.url)
    outbox = Outbox(database, sender)
    try:
        async with database.write(EVERY_TENANT) as session:
            outbox.add(session, "some.task", {"number": 0})
        await outbox.settle()
        server.stop()
        took = []
        for number in (1, 2, 3):
            began = time.monotonic()
            async with database.write(EVERY_TENANT) as session:
                outbox.add(session, "some.task", {"number": number})
            took.append(time.monotonic() - began)
        assert min(took) < 0.3
        await outbox.settle()
        assert time.monotonic() - began < 30
        assert await unsent(database) == 3
        with pytest.raises(TaskQueueUnavailable):
            await outbox.relay(older_than=0)
        assert await unsent(database) == 3
        server = start_redis(directory)
        assert await outbox.relay(older_than=0) == 3
        assert await unsent(database) == 0
        async with redis.asyncio.Redis.from_url(server.url) as client:
            assert [arguments["number"] for _, arguments in await queued(client)][-3:] == [1, 2, 3]
    finally:
        await outbox.close()
        sender.close()
        server.stop()


async def test_a_redis_that_hangs_holds_nobody_up_for_long(database: Database) -> None:
    """It takes connections and says nothing."""
    silent = socket.create_server(("127.0.0.1", 0))
    sender = TaskSender(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout=0.5)
    try:
        began = time.monotonic()
        with pytest.raises(TaskQueueUnavailable):
            await sender.send("some.task", {})
        assert time.monotonic() - began < 30
    finally:
        sender.close()
        silent.close()


async def test_two_relays_at_once_send_each_message_once(
    database: Database, redis_url: str, redis_client: redis.asyncio.Redis
) -> None:
    async with database.write(EVERY_TENANT) as session:
        session.add_all(OutboxMessage(task="some.task", arguments={"number": n}) for n in range(150))
    senders = [TaskSender(redis_url) for _ in range(2)]
    relayed = await asyncio.gather(*(Outbox(database, one).relay(older_than=0) for one in senders))
    assert sum(relayed) == 150
    assert sorted(arguments["number"] for _, arguments in await queued(redis_client)) == list(range(150))
    for sender in senders:
        sender.close()


async def test_a_message_being_sent_is_left_alone_for_a_moment(database: Database, outbox: Outbox) -> None:
    async with database.write(EVERY_TENANT) as session:
        session.add(OutboxMessage(task="some.task", arguments={}))
    assert await outbox.relay(older_than=0.5) == 0

    async def relayed() -> bool:
        return await outbox.relay(older_than=0.5) == 1

    await eventually(relayed)


async def test_old_messages_are_forgotten_once_sent(database: Database, outbox: Outbox) -> None:
    async with database.write(EVERY_TENANT) as session:
        session.add_all(OutboxMessage(task="some.task", arguments={"number": n}) for n in range(3))
    async with database.write(EVERY_TENANT) as session:
        days = text("now() - interval '2 days'")
        await session.execute(update(OutboxMessage).values(created_at=days))
        first = update(OutboxMessage).where(OutboxMessage.arguments["number"].as_integer() == 0)
        await session.execute(first.values(sent_at=days))
        second = update(OutboxMessage).where(OutboxMessage.arguments["number"].as_integer() == 1)
        await session.execute(second.values(sent_at=func.now()))
    assert await outbox.prune() == 1
    assert await unsent(database) == 1, "what is not sent is never forgotten"
