"""Stored state whose time is over is deleted for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from conversations.background.service import BackgroundQueue
from conversations.errors import ResponseNotFound
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord, ResponseService
from conversations.sealing import ContentSealer
from conversations.service import ConversationService
from db.session import EVERY_TENANT, Database
from retention.sweep import RetentionSweep
from tenants.retention.classes import DEFAULT_BOUNDS

SEALER = ContentSealer("s" * 32)
TABLES = ("stored_responses", "response_events", "conversations", "conversation_items")


def owner(keep: float, tenant: str = "a") -> Owner:
    return Owner(f"ten_{tenant}", f"proj_{tenant}", f"key_{tenant}", timedelta(days=keep))


def record(name: str, status: str = "completed") -> ResponseRecord:
    item = {"id": f"msg_{name}", "type": "message"}
    return ResponseRecord(f"resp_{name}", status, 1_800_000_000.0, {"id": name}, [item])


@pytest.fixture(autouse=True)
async def two_tenants(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        for name in ("a", "b"):
            await session.execute(text(f"INSERT INTO tenants (id, name) VALUES ('ten_{name}', '{name}')"))
            await session.execute(
                text(f"INSERT INTO projects (id, tenant_id, name) VALUES ('proj_{name}', 'ten_{name}', 'p')")
            )


async def counts(database: Database) -> dict[str, Any]:
    async with database.read(EVERY_TENANT) as session:
        return {
            table: (await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
            for table in TABLES
        }


async def fill(database: Database, whose: Owner, name: str) -> None:
    """A response, a background response with an event, and a conversation with an item."""
    responses = ResponseService(database, SEALER)
    await responses.save(whose, record(name))
    queue = BackgroundQueue(database, SEALER, responses)
    await queue.add(whose, record(f"{name}_b", "queued"), b"{}", [(0, b"event")])
    item = {"id": f"msg_{name}_c", "type": "message"}
    await ConversationService(database, SEALER).create(whose, {}, [item])


async def expire_all(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        for table in ("stored_responses", "conversations"):
            await session.execute(text(f"UPDATE {table} SET expires_at = now() - interval '1 second'"))


async def test_what_has_expired_is_gone_for_good(database: Database) -> None:
    await fill(database, owner(1), "old")
    await expire_all(database)
    await fill(database, owner(1), "new")
    assert await RetentionSweep(database, DEFAULT_BOUNDS).run_expired() == 3
    assert await counts(database) == {
        "stored_responses": 2,
        "response_events": 1,
        "conversations": 1,
        "conversation_items": 1,
    }
    found = await ResponseService(database, SEALER).find(owner(1), "resp_new")
    assert found.input == record("new").input
    assert await RetentionSweep(database, DEFAULT_BOUNDS).run_expired() == 0


async def test_an_organization_that_stores_nothing_loses_what_it_had(database: Database) -> None:
    await fill(database, owner(1), "ours")
    await fill(database, owner(1, "b"), "theirs")
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE tenants SET stores_nothing = true WHERE id = 'ten_b'"))
    assert await RetentionSweep(database, DEFAULT_BOUNDS).run_expired() == 3
    async with database.read(EVERY_TENANT) as session:
        left = await session.execute(text("SELECT DISTINCT tenant_id FROM stored_responses"))
        assert left.scalars().all() == ["ten_a"]


async def test_what_has_expired_is_not_shown_before_it_is_deleted(database: Database) -> None:
    await fill(database, owner(1), "old")
    await expire_all(database)
    responses = ResponseService(database, SEALER)
    with pytest.raises(ResponseNotFound):
        await responses.find(owner(1), "resp_old")


async def test_row_security_holds_the_tables(database: Database) -> None:
    await fill(database, owner(1), "ours")
    async with database.read("ten_b") as session:
        for table in TABLES:
            assert (await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() == 0
