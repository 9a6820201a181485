"""Kills, failing stores, holds, requests and whole organizations: what is deleted, owed and certified."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from adapters.storage import StorageUnavailable
from adapters.storage.local import LocalStore
from billing.reconciliation.deletions import compare_deletions
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord, ResponseService
from conversations.sealing import ContentSealer
from conversations.service import ConversationService
from db.session import EVERY_TENANT, Database
from retention.certificates import InvalidCertificate, verify, verify_chain
from retention.certifying import CERTIFIED, KEY_USED, Certifier
from retention.objects import delete_owed_objects
from retention.organizations import OrganizationDeletion
from retention.service import RetentionService
from retention.signing import CertificateSigner
from retention.sweep import RetentionSweep
from tenants.actors import OPERATOR, SYSTEM, Actor
from tenants.audit.chain import digest_of
from tenants.audit.repository import AuditRepository
from tenants.audit.service import OPERATOR_CHAIN, AuditEntry, AuditFilter, AuditLog
from tenants.key_secrets import KeySecrets
from tenants.refusals.intake import RefusalIntake
from tenants.retention.classes import DataClass, RetentionBounds
from tenants.retention.errors import (
    DeletionBegun,
    DeletionUnconfirmed,
    HoldLifted,
    OnLegalHold,
    OrganizationActive,
    PeriodNotAllowed,
)
from tenants.service import account_services
from tests.retention import rows
from tests.retention.rows import add, ages_left, scalar, set_days

BOUNDS = RetentionBounds({}, backup_days=35, books_years=10)
SIGNER = CertificateSigner(KeySecrets("s" * 32))
ANN = Actor("user", "user_ann")


@pytest.fixture(autouse=True)
async def two_tenants(database: Database) -> None:
    await rows.make_tenants(database)


AWAY = StorageUnavailable("the bucket is away")


class FailingStore(LocalStore):
    """A directory that is away while `is_away`."""

    is_away = False

    async def delete(self, key: str) -> None:
        if self.is_away:
            raise AWAY
        await super().delete(key)


@pytest.fixture
async def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path)


async def fill(store: FailingStore, database: Database) -> None:
    """Puts the objects that rows of files name into the store."""
    async with database.read(EVERY_TENANT) as session:
        for key in (await session.execute(text("SELECT object_key FROM files"))).scalars():
            await store.put(key, b"content")


async def stored(store: FailingStore) -> int:
    return len([one async for one in store.list("tenants")])


def sweep(database: Database, slice_rows: int = 500) -> RetentionSweep:
    return RetentionSweep(database, BOUNDS, slice_rows=slice_rows)


async def certify(database: Database) -> int:
    return await Certifier(database, SIGNER, BOUNDS).run()


async def end_day(database: Database) -> None:
    """A day later: what periods delete is certified by the day."""
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE deletions SET started_at = started_at - interval '1 day'"))
    await sweep(database).run_for("ten_a")


async def certificates(database: Database, tenant: str = "ten_a") -> list[dict[str, Any]]:
    found = await RetentionService(database, BOUNDS).certificates(tenant, newest_first=False)
    return [one.document for one in found]


async def test_a_kill_anywhere_loses_nothing_and_counts_nothing_twice(
    database: Database, store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_days(database, "files", 1)
    ids = await add(database, "files", [9] * 5)
    await fill(store, database)
    killed = 0

    def killing(name: str, after: int) -> Callable[..., Any]:
        from tenants.retention.repository import DeletionRepository

        before, calls = getattr(DeletionRepository, name), 0

        async def step(self: Any, *args: Any, **more: Any) -> Any:
            nonlocal calls, killed
            calls += 1
            if calls == after:
                killed += 1
                raise RuntimeError("killed")
            return await before(self, *args, **more)

        monkeypatch.setattr(DeletionRepository, name, step)
        return step

    killing("owe", 2)  # rows deleted and counted, not committed
    killing("settle", 3)  # the object is gone, and still owed
    with pytest.raises(RuntimeError, match="killed"):
        await sweep(database, slice_rows=2).run_for("ten_a")
    assert len(await ages_left(database, "files")) == 3
    await sweep(database, slice_rows=2).run_for("ten_a")
    with pytest.raises(RuntimeError, match="killed"):
        await delete_owed_objects(database, store)
    assert await certify(database) == 0
    await end_day(database)
    assert await certify(database) == 0, "an object is owed"
    assert await delete_owed_objects(database, store) == 3
    monkeypatch.undo()
    assert (await certify(database), await certify(database), killed) == (1, 0, 2)
    [document] = await certificates(database)
    [table] = verify(document)["deletions"][0]["tables"]
    assert (table["table"], table["rows"], table["objects"]) == ("files", 5, 5)
    assert sorted(table["ids"]) == ids
    assert await stored(store) == 0


async def test_objects_that_the_store_keeps_are_owed(database: Database, store: FailingStore) -> None:
    await set_days(database, "files", 1)
    await add(database, "files", [9, 9, 0.1])
    await fill(store, database)
    store.is_away = True
    await sweep(database).run_for("ten_a")
    assert await delete_owed_objects(database, store) == 0
    await end_day(database)
    assert (await certify(database), await stored(store)) == (0, 3)
    assert (await RetentionService(database, BOUNDS).pending("ten_a"))[1] == 2
    assert await scalar(database, "SELECT max(error) FROM owed_objects") == str(AWAY)
    store.is_away = False
    assert await delete_owed_objects(database, store) == 0, "it waits for a minute"
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE owed_objects SET next_at = now()"))
    assert await delete_owed_objects(database, store) == 2
    assert (await certify(database), await stored(store)) == (1, 1)


async def test_reconciliation_names_what_is_owed_for_long(database: Database, store: FailingStore) -> None:
    await set_days(database, "files", 1)
    [one] = await add(database, "files", [9])
    await sweep(database).run_for("ten_a")
    now = await scalar(database, "SELECT now()")
    assert await compare_deletions(database, now) == []
    [found] = await compare_deletions(database, now + timedelta(hours=25))
    assert (found.check, found.tenant_id) == ("deletions", "ten_a")
    assert one in found.what


async def test_a_hold_keeps_a_class_and_an_object_until_it_is_lifted(database: Database) -> None:
    service = RetentionService(database, BOUNDS)
    for data_class in ("files", "batches", "responses"):
        await set_days(database, data_class, 1)
    await add(database, "files", [9])
    batches = await add(database, "batches", [9, 9])
    of_class = await service.place_hold("ten_a", "case 1", ANN, data_class=DataClass.FILES)
    of_object = await service.place_hold("ten_a", "case 2", ANN, object_id=batches[0])
    await sweep(database).run_for("ten_a")
    assert len(await ages_left(database, "files")) == 1
    assert await scalar(database, "SELECT id FROM batches") == batches[0]
    preview = await service.preview("ten_a", DataClass.BATCHES, 1)
    assert [(one.table, one.num_rows, one.num_held) for one in preview.tables] == [
        ("files", 0, 0),
        ("batches", 0, 1),
    ]
    for hold in (of_class, of_object):
        await service.lift_hold("ten_a", hold.id, ANN)
    with pytest.raises(HoldLifted):
        await service.lift_hold("ten_a", of_class.id, ANN)
    assert await sweep(database).run_for("ten_a") == 2
    log = AuditLog(database)
    types = [entry.type for entry in await log.list("ten_a", newest_first=False)]
    assert types == ["legal_hold.placed"] * 2 + ["legal_hold.lifted"] * 2
    everything = await service.place_hold("ten_a", "all of it", ANN, object_id="ten_a")
    assert {one.hold_id for one in await service.periods("ten_a")} == {everything.id}
    for data_class, object_id in ((None, None), (DataClass.FILES, "file_1"), (None, "x" * 200)):
        with pytest.raises(ValueError, match=r"data_class|object_id"):
            await service.place_hold("ten_a", "x", ANN, data_class=data_class, object_id=object_id)


async def test_requests_to_delete_are_refused_while_held_and_certified_afterwards(database: Database) -> None:
    sealer, whose = ContentSealer("s" * 32), Owner("ten_a", "proj_ten_a", "key_1", timedelta(days=30))
    responses, conversations = ResponseService(database, sealer), ConversationService(database, sealer)
    conversation = await conversations.create(whose, {}, [{"id": "msg_1", "type": "message"}])
    record = ResponseRecord("resp_1", "completed", 1_800_000_000.0, {}, [])
    await responses.save(whose, record)
    service = RetentionService(database, BOUNDS)
    hold = await service.place_hold("ten_a", "case", ANN, data_class=DataClass.RESPONSES)
    with pytest.raises(OnLegalHold, match=f"is on legal hold {hold.id} and cannot be deleted: lift"):
        await conversations.delete(whose, conversation.id)
    with pytest.raises(OnLegalHold):
        await conversations.delete_item(whose, conversation.id, "msg_1")
    with pytest.raises(OnLegalHold):
        await responses.delete(whose, "resp_1")
    await service.lift_hold("ten_a", hold.id, ANN)
    await responses.delete(whose, "resp_1")
    await conversations.delete(whose, conversation.id)
    assert await certify(database) == 2
    first, second = await certificates(database)
    assert first["statement"]["deletions"][0]["object"] == {"kind": "response", "id": "resp_1"}
    said = second["statement"]["deletions"][0]
    assert said["requested_by"] == {"type": "api_key", "id": "key_1"}
    assert {table["table"]: table["rows"] for table in said["tables"]} == {
        "conversations": 1,
        "conversation_items": 1,
    }
    found = await service.certificates("ten_a", object_id="resp_1")
    assert [one.document["sha256"] for one in found] == [first["sha256"]]
    assert await service.certificates("ten_b", object_id="resp_1") == []
    verify_chain([first, second])


async def test_a_removed_member_is_certified_and_a_held_one_is_kept(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    accounts, service = account_services(database, redis_client, "s" * 32), RetentionService(database, BOUNDS)
    member = await accounts.users.create("ten_a", "bob@example.com", "a long password", role="viewer")
    await accounts.members.add_to_project("ten_a", "proj_ten_a", member.user_id, "member", OPERATOR)
    hold = await service.place_hold("ten_a", "case", ANN, object_id=member.user_id)
    with pytest.raises(OnLegalHold, match="disable the user, or lift"):
        await accounts.members.remove("ten_a", member.user_id, OPERATOR)
    await service.lift_hold("ten_a", hold.id, ANN)
    await accounts.members.remove("ten_a", member.user_id, OPERATOR)
    assert await certify(database) == 1
    [document] = await certificates(database)
    [said] = document["statement"]["deletions"]
    assert said["object"] == {"kind": "user", "id": member.user_id}
    assert [(table["table"], table["rows"]) for table in said["tables"]] == [("project_members", 1)]
    held = await service.place_hold("ten_a", "case", ANN, data_class=DataClass.RESPONSES)
    with pytest.raises(OnLegalHold):
        await accounts.data_retention.set("ten_a", True, OPERATOR)
    await service.lift_hold("ten_a", held.id, ANN)
    await accounts.data_retention.set("ten_a", True, OPERATOR)


async def test_refused_calls_of_a_month_ago_stay_while_any_are_held(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    service, intake = RetentionService(database, BOUNDS), RefusalIntake(database, redis_client, "one")
    hold = await service.place_hold("ten_a", "case", ANN, data_class=DataClass.REQUESTS)
    for tenant in rows.TENANTS:
        await add(database, "refused_requests", [40], tenant)
    await intake.tidy()
    for tenant, num in (("ten_a", 0), ("ten_b", 1)):
        assert await sweep(database).run_for(tenant) == num
    await service.lift_hold("ten_a", hold.id, ANN)
    await intake.tidy()
    assert await ages_left(database, "refused_requests") == []


async def test_a_shorter_period_shows_what_it_deletes_before_it_is_confirmed(database: Database) -> None:
    service = RetentionService(database, BOUNDS)
    await add(database, "files", [2, 5, 9])
    preview = await service.preview("ten_a", DataClass.FILES, 4)
    assert [(one.table, one.num_rows) for one in preview.tables] == [("files", 2), ("uploads", 0)]
    with pytest.raises(DeletionUnconfirmed, match="for 4 days deletes 2 rows for good"):
        await service.set("ten_a", DataClass.FILES, 4, ANN)
    assert await service.certificates("ten_a") == []
    shown = await service.set("ten_a", DataClass.FILES, 4, ANN, confirms_deletions=True)
    assert (shown.days, shown.set_days, shown.default) == (4, 4, None)
    await sweep(database).run_for("ten_a")
    await certify(database)  # soon, not after a day; the objects are owed
    assert await certificates(database) == []
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("DELETE FROM owed_objects"))
    assert await certify(database) == 1
    [document] = await certificates(database)
    assert document["statement"]["deletions"][0]["periods_days"] == {"files": 4}
    longer = await service.set("ten_a", DataClass.FILES, None, ANN)  # nothing to confirm
    assert longer.days is None
    for data_class, days in ((DataClass.RESPONSES, 31), (DataClass.FILES, 0)):
        with pytest.raises(PeriodNotAllowed, match="use 1 to"):
            await service.set("ten_a", data_class, days, ANN)
    entries = await AuditLog(database).list("ten_a", AuditFilter(types=["retention.updated"]))
    assert [entry.details["days"] for entry in entries] == [None, 4]


async def test_a_certificate_is_proved_without_a_database_and_a_changed_one_is_not(
    database: Database,
) -> None:
    await set_days(database, "requests", 1)
    await add(database, "request_metadata", [9, 9])
    await sweep(database).run_for("ten_a")
    await end_day(database)
    await certify(database)
    [document] = json.loads(json.dumps(await certificates(database)))
    assert verify(document, SIGNER.public_key)["rows"] == 2

    def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        other = copy.deepcopy(document)
        change(other)
        return other

    def say_more(one: dict[str, Any]) -> None:
        one["statement"]["rows"] = 3

    def add_id(one: dict[str, Any]) -> None:
        one["statement"]["deletions"][0]["tables"][0]["ids"].append("x")

    for change, why in (
        (say_more, "was changed"),
        (add_id, "was changed"),
        (lambda one: one.update(sha256="0" * 64), "was changed"),
        (lambda one: one["signature"].update(value="0" * 128), "signature is not that"),
        (lambda one: one["signature"].update(public_key="zz"), "no certificate"),
        (lambda one: one.pop("signature"), "no certificate"),
        (lambda one: one["statement"].update(format="v0"), "does not know"),
    ):
        with pytest.raises(InvalidCertificate, match=why):
            verify(changed(change))
    other = CertificateSigner(KeySecrets("t" * 32))
    with pytest.raises(InvalidCertificate, match="is signed with the key"):
        verify(document, other.public_key)
    service_log = await AuditLog(database).list(OPERATOR_CHAIN, AuditFilter(types=[KEY_USED]))
    assert [entry.details["public_key"] for entry in service_log] == [SIGNER.public_key.hex()]
    [entry] = await AuditLog(database).list("ten_a", AuditFilter(types=[CERTIFIED]))
    assert entry.details["sha256"] == document["sha256"]
    later = changed(lambda one: one["statement"].update(number=3))
    with pytest.raises(InvalidCertificate, match="certificate 2 is missing"):
        verify_chain([document, later])


async def test_the_oldest_entries_of_the_audit_log_go_and_the_rest_is_proved(database: Database) -> None:
    log = AuditLog(database)
    await write_old_entries(database, [500, 400, 100, 1])
    await set_days(database, "audit_log", 365)
    assert await sweep(database, slice_rows=1).run_for("ten_a") == 2
    proof = await log.prove("ten_a")
    assert (proof.num_entries, proof.broken_from) == (4, None)
    assert [entry.seq for entry in await log.list("ten_a", newest_first=False)] == [3, 4]
    for statement, why in (
        ("SELECT prune_audit_log('ten_a', 4)", "younger than 90 days"),
        ("DELETE FROM audit_log", "permission denied"),
        ("UPDATE audit_log SET type = 'x'", "permission denied"),
    ):
        with pytest.raises(ProgrammingError, match=why):
            await try_to_prune(database, statement)


async def test_an_organization_leaves_its_books_and_a_certificate(
    database: Database, redis_client: redis.asyncio.Redis, store: FailingStore
) -> None:
    deletion, service = OrganizationDeletion(database, redis_client), RetentionService(database, BOUNDS)
    for table in rows.CLASSES:
        await add(database, table, [0.01])
        await add(database, table, [0.01], "ten_b")
    await fill(store, database)
    with pytest.raises(OrganizationActive):
        await deletion.begin("ten_a")
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE tenants SET disabled_at = now() WHERE id = 'ten_a'"))
    hold = await service.place_hold("ten_a", "case", ANN, object_id="user_ten_a")
    with pytest.raises(OnLegalHold):
        await deletion.begin("ten_a")
    await service.lift_hold("ten_a", hold.id, ANN)
    await deletion.begin("ten_a")
    with pytest.raises(DeletionBegun):
        await deletion.begin("ten_a")
    await sweep(database).run_expired()
    await delete_owed_objects(database, store)
    assert await certify(database) == 0, "an adapter is still stored"
    async with database.write("ten_a") as session:  # as the purge of deleted adapters does
        await session.execute(text("DELETE FROM adapter_versions"))
    await sweep(database).run_expired()
    assert await certify(database) == 1
    for table in rows.CLASSES:
        assert await ages_left(database, table) == [], table
        assert len(await ages_left(database, table, "ten_b")) == 1, table
    [user] = {*await texts(database, "SELECT email FROM users WHERE id = 'user_ten_a'")}
    assert user == "user_ten_a@erased.invalid"
    assert await scalar(database, "SELECT name FROM tenants WHERE id = 'ten_a'") == "ten_a"
    [document] = await certificates(database)
    statement = verify(document)
    assert statement["cause"] == "organization"
    assert {one["what"] for one in statement["kept"]} >= {"Usage ledger and its sums", "Audit log"}
    written = json.dumps(document)
    assert "example.com" not in written
    [entry] = await AuditLog(database).list(OPERATOR_CHAIN, AuditFilter(types=[CERTIFIED]))
    assert (entry.details["organization_id"], entry.details["sha256"]) == ("ten_a", document["sha256"])


async def try_to_prune(database: Database, statement: str) -> None:
    async with database.write("ten_a") as session:
        await session.execute(text("SELECT set_config('rootstock.pruning', 'ten_a', true)"))
        await session.execute(text(statement))


async def texts(database: Database, query: str) -> list[str]:
    async with database.read(EVERY_TENANT) as session:
        return list((await session.execute(text(query))).scalars())


async def write_old_entries(database: Database, ages: list[float]) -> None:
    """Writes entries of these ages in days into the chain of the first tenant."""
    for number, age in enumerate(ages):
        async with database.write("ten_a") as session:
            head = await AuditRepository(session, "ten_a").hold_head()
            entry = AuditEntry(
                tenant_id="ten_a",
                seq=head.seq + 1,
                id=f"audit_log-{number}",
                at=head.now - timedelta(days=age),
                type="x",
                actor=SYSTEM.audit_fields(),
                target_kind="x",
                target_id="x",
                project_id=None,
                details={},
                previous=head.digest,
            )
            entry.digest = digest_of(entry)
            await AuditRepository(session, "ten_a").add(entry)
