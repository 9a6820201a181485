"""What the old key secret sealed is resealed under the new one, and read by each service as before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from billing.request_metadata.content import MetadataSealer, RequestMetadata
from billing.request_metadata.models import StoredMetadata
from billing.request_metadata.repository import MetadataRepository
from billing.request_metadata.sealed_columns import SEALED as METADATA
from conversations.background.service import BackgroundQueue
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord, ResponseService
from conversations.sealed_columns import SEALED as STATE
from conversations.sealing import ContentSealer
from conversations.service import ConversationService
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from tenants.key_secrets import KeySecrets
from tenants.rotation.resealing import Resealer

OLD, NEW = "o" * 32, "n" * 32
OWNER = Owner("ten_a", "proj_a", "key_a", timedelta(days=1))
AT = datetime(2026, 11, 26, tzinfo=UTC)
NAMED = RequestMetadata("user-77")
COLUMNS = (*STATE, *METADATA)


async def fill(database: Database) -> str:
    """Stores one row of each kind, sealed under the old secret; returns the conversation's id."""
    sealer = ContentSealer(OLD)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("INSERT INTO tenants (id, name) VALUES ('ten_a', 'a')"))
        await session.execute(
            text("INSERT INTO projects (id, tenant_id, name) VALUES ('proj_a', 'ten_a', 'p')")
        )
        sealed = MetadataSealer(OLD).seal(NAMED, "ten_a", "req_1")
        session.add(StoredMetadata(tenant_id="ten_a", submitted_at=AT, request_id="req_1", sealed=sealed))
    responses = ResponseService(database, sealer)
    queue = BackgroundQueue(database, sealer, responses)
    said = {"id": "msg_1", "type": "message", "text": "asked"}
    for number in range(3):
        record = ResponseRecord(
            f"resp_{number}", "completed", 1_800_000_000.0, {"id": number}, [said], [said]
        )
        await responses.save(OWNER, record)
    waiting = ResponseRecord("resp_b", "queued", 1_800_000_000.0, {"id": "b"}, [said])
    await queue.add(OWNER, waiting, b'{"request": 1}', [(0, b"event 0")])
    return (await ConversationService(database, sealer).create(OWNER, {"topic": "tea"}, [said])).id


async def read(database: Database, secrets: KeySecrets, conversation: str) -> list[object]:
    """Returns all contents, as the services of a process with these secrets read them."""
    sealer = ContentSealer(secrets)
    responses, conversations = ResponseService(database, sealer), ConversationService(database, sealer)
    queue = BackgroundQueue(database, sealer, responses)
    (claimed,) = await queue.claim("process", 1)
    await queue.release("process", [claimed.record.id])
    async with database.read("ten_a") as session:
        sealed = await MetadataRepository(session, "ten_a").sealed(AT, "req_1")
    assert sealed is not None
    return [
        *[await responses.find(OWNER, f"resp_{number}") for number in range(3)],
        claimed.record,
        claimed.request,
        (await queue.events(OWNER, "resp_b", -1)).events,
        (await conversations.find(OWNER, conversation)).metadata,
        await conversations.context(OWNER, conversation),
        MetadataSealer(secrets).open(sealed, "ten_a", "req_1"),
    ]


async def test_resealing_is_resumed_where_it_was_interrupted_and_changes_no_content(
    database: Database,
) -> None:
    conversation = await fill(database)
    before = await read(database, KeySecrets(OLD), conversation)
    rotating = KeySecrets(NEW, OLD)
    assert await read(database, rotating, conversation) == before, "both are valid"
    with pytest.raises(ValueError, match="cannot be decrypted"):
        await read(database, KeySecrets(NEW), conversation)
    resealer = Resealer(database, rotating, COLUMNS)
    due = await resealer.num_due()
    assert due == {column.what: due[column.what] for column in COLUMNS}
    assert min(due.values()) >= 1, "a row of each kind"

    def interrupted(what: str, num: int) -> None:
        if (what, num) == ("responses: input", 2):
            raise DatabaseUnavailable

    with pytest.raises(DatabaseUnavailable):
        await resealer.run(interrupted, batch_size=1)
    assert 0 < sum((await resealer.num_due()).values()) < sum(due.values())
    assert await read(database, rotating, conversation) == before, "half of it resealed"
    resumed = await resealer.run(batch_size=2)
    assert sum(result.num_resealed for result in resumed) < sum(due.values())
    assert sum(result.num_unreadable for result in resumed) == 0
    assert set((await resealer.num_due()).values()) == {0}
    assert await read(database, KeySecrets(NEW), conversation) == before, "the old one may go"
    with pytest.raises(ValueError, match="cannot be decrypted"):
        await read(database, KeySecrets(OLD), conversation)


def test_every_sealed_column_is_resealed() -> None:
    """A new column called `sealed` has to be in the list."""
    from db.base import Base

    sealed = {
        (mapper.class_.__name__, column.name)
        for mapper in Base.registry.mappers
        for column in mapper.local_table.columns  # type: ignore[attr-defined]
        if column.name.startswith("sealed")
    }
    assert {(column.model.__name__, column.column) for column in COLUMNS} == sealed
