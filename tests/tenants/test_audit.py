"""The audit log: complete, in order, and whole, or it says where it is not."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import ProgrammingError

from db.errors import UnknownCursor
from db.session import Database
from tenants.actors import OPERATOR, Actor
from tenants.audit.chain import checked_details
from tenants.audit.service import OPERATOR_CHAIN, AuditFilter, AuditLog
from tenants.errors import KeyNotFound, NameTaken
from tenants.key_restrictions import KeyChanges, KeyRestrictions
from tenants.models import Tenant
from tenants.plans import PlanChanges
from tenants.service import AccountServices

pytestmark = pytest.mark.usefixtures("cheap_passwords")

PASSWORD = "correct horse battery"


@pytest.fixture
async def superuser(owner_url: str) -> Any:
    """A connection that nothing holds back."""
    url = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SET session_replication_role = replica")  # no trigger fires
        yield connection


async def write(database: Database, tenant_id: str, count: int, actor: Actor = OPERATOR) -> None:
    for n in range(count):
        async with database.write(tenant_id) as session:
            await AuditLog.record(session, tenant_id, actor, "thing.done", ("thing", f"t_{n}"), {"n": n})


async def write_and_crash(database: Database, tenant_id: str) -> None:
    async with database.write(tenant_id) as session:
        await AuditLog.record(session, tenant_id, OPERATOR, "thing.done", ("thing", "t_1"))
        raise RuntimeError("crash before the commit")


async def test_every_change_of_an_account_is_there(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    """One of each, by somebody known."""
    ann = Actor("user", "usr_1", "192.0.2.1", "req_1", user_id=None, email="ann@example.com")
    keys, projects, members = accounts.keys, accounts.projects, accounts.members
    project = await projects.create(tenant.id, "web", ann)
    await projects.rename(tenant.id, project.id, "site", ann)
    key = await keys.create(tenant.id, "ci", ann, restrictions=KeyRestrictions(networks=("10.0.0.0/8",)))
    await keys.update(tenant.id, key.id, KeyChanges(name="robot"), ann)
    await keys.rotate(tenant.id, key.id, ann)
    await keys.revoke(tenant.id, key.id, ann)
    user = await accounts.users.create(tenant.id, "bob@example.com", PASSWORD, actor=ann)
    await accounts.users.create(tenant.id, "cid@example.com", PASSWORD, actor=ann)
    await members.update(tenant.id, user.user_id, ann, role="viewer")
    await members.add_to_project(tenant.id, project.id, user.user_id, "member", ann)
    await members.update_in_project(tenant.id, project.id, user.user_id, "owner", ann)
    await members.remove_from_project(tenant.id, project.id, user.user_id, ann)
    await members.remove(tenant.id, user.user_id, ann)
    account = await accounts.service_accounts.create(tenant.id, project.id, "bot", ann)
    await accounts.service_accounts.update(tenant.id, project.id, account.id, ann, name="crawler")
    await accounts.service_accounts.delete(tenant.id, project.id, account.id, ann)
    await projects.archive(tenant.id, project.id, ann)
    invited = await accounts.invites.create(tenant.id, "dan@example.com", "viewer", ann)
    await accounts.invites.delete(tenant.id, invited.invite.id, ann)
    invited = await accounts.invites.create(tenant.id, "eve@example.com", "viewer", ann)
    await accounts.plans.create("gold", PlanChanges(max_adapters=7))
    await accounts.plans.set_tenant_plan(tenant.id, "gold", ann)
    await accounts.tenants.set_tenant_disabled(tenant.id, True, ann)
    await accounts.tenants.set_tenant_disabled(tenant.id, False, ann)
    expected = [
        *("project.created", "project.updated"),
        *("api_key.created", "api_key.updated", "api_key.rotated", "api_key.deleted"),
        *("user.added", "user.added", "user.updated"),
        *("role.assignment.created", "role.assignment.created", "role.assignment.deleted", "user.deleted"),
        *("service_account.created", "service_account.updated", "service_account.deleted"),
        *("project.archived", "invite.sent", "invite.deleted", "invite.sent"),
        *("organization.updated", "organization.updated", "organization.updated"),
    ]
    entries = await accounts.audit.list(tenant.id, limit=100, newest_first=False)
    assert [entry.type for entry in entries] == ["organization.created", "project.created", *expected]
    assert {json.dumps(entry.actor, sort_keys=True) for entry in entries[2:]} == {
        json.dumps(ann.audit_fields(), sort_keys=True)
    }
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert len({entry.id for entry in entries}) == len(entries)
    await accounts.invites.accept(invited.token, PASSWORD, address="192.0.2.9")
    added, accepted, *_ = await accounts.audit.list(tenant.id)
    assert (accepted.type, added.type) == ("invite.accepted", "user.added")
    assert accepted.actor["address"] == "192.0.2.9"
    assert await accounts.audit.verify(tenant.id) is None


async def test_what_is_no_tenants_is_in_a_chain_of_its_own(accounts: AccountServices, tenant: Tenant) -> None:
    await accounts.plans.create("gold", PlanChanges(gate={"min_agreement": 0.25}))
    await accounts.plans.set("gold", PlanChanges(max_adapters=7))
    changed, created = await accounts.audit.list(OPERATOR_CHAIN)
    assert (created.type, created.details["gate"]) == ("plan.created", {"min_agreement": "0.25"})
    assert (changed.type, changed.details["max_adapters"]) == ("plan.updated", 7)
    assert await accounts.audit.chains() == sorted([OPERATOR_CHAIN, tenant.id])
    assert await accounts.audit.verify(OPERATOR_CHAIN) is None


async def test_what_was_refused_or_undone_leaves_no_trace_and_no_gap(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    theirs = await accounts.keys.create(other.id, "ci", OPERATOR)
    before = len(await accounts.audit.list(tenant.id))
    with pytest.raises(KeyNotFound):
        await accounts.keys.revoke(tenant.id, theirs.id, OPERATOR)
    with pytest.raises(NameTaken):
        await accounts.projects.create(tenant.id, "Default", OPERATOR)
    with pytest.raises(RuntimeError, match="crash"):
        await write_and_crash(database, tenant.id)
    assert len(await accounts.audit.list(tenant.id)) == before
    await write(database, tenant.id, 1)
    assert (await accounts.audit.list(tenant.id))[0].seq == before + 1
    assert await accounts.audit.verify(tenant.id) is None
    [created, *_] = await accounts.audit.list(other.id)
    assert created.target_id == theirs.id, "and theirs is in theirs"


async def test_those_who_write_at_once_make_one_chain_without_gaps(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    before = len(await accounts.audit.list(tenant.id))

    async def writer(tenant_id: str, fails: bool) -> None:
        async with database.write(tenant_id) as session:
            await AuditLog.record(session, tenant_id, OPERATOR, "thing.done", ("thing", "t_1"))
            await asyncio.sleep(0.001)
            if fails:
                raise RuntimeError

    outcomes = await asyncio.gather(
        *(writer(tenant.id, n % 5 == 0) for n in range(40)),
        *(writer(other.id, False) for _ in range(10)),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 42
    entries = await accounts.audit.list(tenant.id, limit=100, newest_first=False)
    assert [entry.seq for entry in entries] == list(range(1, before + 33))
    times = [entry.at for entry in entries]
    assert times == sorted(times), "in the order of the commits, by one clock"
    assert [await accounts.audit.verify(one.id) for one in (tenant, other)] == [None, None]


async def test_a_writer_waits_for_the_one_before_it(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    """The end of the chain is held until the commit: nobody builds on what may still vanish."""
    async with database.write(tenant.id) as first:
        await AuditLog.record(first, tenant.id, OPERATOR, "first", ("thing", "t_1"))
        second = asyncio.create_task(write(database, tenant.id, 1))
        await write(database, other.id, 1)
        await asyncio.sleep(0.05)
        assert not second.done(), "other tenants' chains go on meanwhile, this one's not"
    await second
    newest, before, *_ = await accounts.audit.list(tenant.id)
    assert [newest.type, before.type] == ["thing.done", "first"]


async def test_the_database_refuses_to_change_what_is_written(
    accounts: AccountServices, tenant: Tenant, owner_url: str, database: Database
) -> None:
    """To the role that serves, and to the owner of the tables, while nobody takes the triggers away."""
    statements = (
        "UPDATE audit_log SET type = 'x'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "DELETE FROM audit_heads",
        "TRUNCATE audit_heads",
    )
    owner = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(owner, autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="only ever added to"):
                await connection.execute(statement)
    for statement in statements:
        with pytest.raises(ProgrammingError, match=r"only ever added to|permission denied"):
            await execute(database, tenant.id, statement)
    assert await accounts.audit.verify(tenant.id) is None


async def execute(database: Database, tenant_id: str, statement: str) -> None:
    async with database.write(tenant_id) as session:
        await session.execute(text(statement))


CHANGES = {  # of one entry, by its number: in each case that is the first broken one
    "a word of the details": ("details = '{\"n\": 9}'", 4),
    "the actor": ('actor = \'{"id": "me", "type": "user"}\'', 3),
    "the time, by a microsecond": ("at = at + interval '1 us'", 5),
    "the type": ("type = 'thing.undone'", 1),
    "the project": ("project_id = 'proj_x'", 5),
    "the target": ("target_id = 't_9'", 5),
    "the kind of the target": ("target_kind = 'key'", 5),
    "the id": ("id = id || 'x'", 7),
    "the digest": ("digest = sha256('x')", 2),
    "the link to the one before": ("previous = digest", 6),
}
MINE = "tenant_id = %(chain)s"
SET_BACK = f"UPDATE audit_heads SET seq = 6 WHERE {MINE}"
PUT_IN = f"""
INSERT INTO audit_log
SELECT tenant_id, seq + 1, 'audit_log-' || tenant_id, at, type, actor, target_kind, target_id, project_id,
    details, digest, digest
FROM audit_log WHERE {MINE} AND seq = 7
"""
TAMPERING = {  # of a chain of seven: what is done to it, and the first entry that is then broken
    **{
        what: ([f"UPDATE audit_log SET {change} WHERE {MINE} AND seq = {seq}"], seq)
        for what, (change, seq) in CHANGES.items()
    },
    "a dropped entry in the middle": ([f"DELETE FROM audit_log WHERE {MINE} AND seq = 4"], 4),
    "the dropped first": ([f"DELETE FROM audit_log WHERE {MINE} AND seq = 1"], 1),
    "the dropped last": ([f"DELETE FROM audit_log WHERE {MINE} AND seq = 7"], 7),
    "all dropped": ([f"DELETE FROM audit_log WHERE {MINE}"], 1),
    "the last dropped, the head set back": ([f"DELETE FROM audit_log WHERE {MINE} AND seq = 7", SET_BACK], 6),
    "a head set back": ([SET_BACK], 6),
    "a dropped head": ([f"DELETE FROM audit_heads WHERE {MINE}"], 1),
    "two that changed places": (
        [
            f"UPDATE audit_log SET seq = {after} WHERE {MINE} AND seq = {before}"
            for before, after in ((4, 100), (5, 4), (100, 5))
        ],
        4,
    ),
    "one put in behind the end": ([PUT_IN], 8),
}


async def test_tampering_is_found_where_it_begins(
    accounts: AccountServices, database: Database, superuser: Any
) -> None:
    found: dict[str, int | None] = {}
    for number, (what, (statements, _)) in enumerate(TAMPERING.items()):
        chain = f"ten_{number}"
        await write(database, chain, 7)
        assert await accounts.audit.verify(chain) is None
        for statement in statements:
            changed = await superuser.execute(statement, {"chain": chain})
            assert changed.rowcount > 0, f"{what} must have happened"
        found[what] = await accounts.audit.verify(chain)
    assert found == {what: first_broken for what, (_, first_broken) in TAMPERING.items()}


async def test_long_chains_are_read_in_pieces(
    accounts: AccountServices,
    tenant: Tenant,
    database: Database,
    superuser: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenants.audit.service._BATCH", 3)
    await write(database, tenant.id, 9)
    assert await accounts.audit.verify(tenant.id) is None
    await superuser.execute("UPDATE audit_log SET type = 'x' WHERE seq = 10")
    assert await accounts.audit.verify(tenant.id) == 10


async def test_a_chain_that_grows_meanwhile_is_whole(
    accounts: AccountServices, tenant: Tenant, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenants.audit.service._BATCH", 1)
    await write(database, tenant.id, 3)
    writing = asyncio.create_task(write(database, tenant.id, 15))
    found = set()
    while not writing.done():
        found.add(await accounts.audit.verify(tenant.id))
    await writing
    assert found == {None}


async def test_entries_are_paged_and_filtered(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    ann = Actor("api_key", "key_1", user_id="usr_1", email="ann@example.com")
    await write(database, tenant.id, 3, ann)
    await write(database, other.id, 1, ann)
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)

    async def seqs(newest_first: bool = True, after: str | None = None, **wanted: Any) -> list[int]:
        found = await accounts.audit.list(
            tenant.id, AuditFilter(**wanted), after=after, limit=4, newest_first=newest_first
        )
        return [entry.seq for entry in found]

    entries = await accounts.audit.list(tenant.id, newest_first=False)
    assert await seqs() == [6, 5, 4, 3]
    assert await seqs(after=entries[2].id) == [2, 1]
    assert await seqs(newest_first=False, after=entries[3].id) == [5, 6]
    assert await seqs(types=["thing.done", "other"]) == [5, 4, 3]
    assert await seqs(actor_ids=["usr_1"]) == await seqs(actor_ids=["key_1"]) == [5, 4, 3]
    assert await seqs(actor_emails=["Ann@Example.com"]) == [5, 4, 3]
    assert await seqs(target_ids=["t_1", project.id]) == [6, 4]
    assert await seqs(project_ids=[project.id]) == [6]
    moment = entries[3].at
    assert await seqs(since=moment) == [6, 5, 4]
    assert await seqs(until=moment) == [3, 2, 1]
    assert await seqs(since=moment, until=moment + timedelta(microseconds=1), types=["thing.done"]) == [4]
    [theirs, *_] = await accounts.audit.list(other.id)
    for unknown in (theirs.id, "audit_log-nothing", "\x00"):
        with pytest.raises(UnknownCursor):
            await accounts.audit.list(tenant.id, after=unknown)


async def test_no_secret_is_ever_in_it(accounts: AccountServices, tenant: Tenant, database: Database) -> None:
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    new = await accounts.keys.rotate(tenant.id, key.id, OPERATOR)
    invited = await accounts.invites.create(tenant.id, "dan@example.com", "viewer", OPERATOR)
    await accounts.invites.accept(invited.token, PASSWORD)
    async with database.read(tenant.id) as session:
        stored = (await session.execute(text("SELECT row_to_json(a)::text FROM audit_log a"))).scalars()
        written = "".join(stored)
    hidden = [secret[-40:] for secret in (key.plaintext, new.plaintext, invited.token)]
    digests = [accounts.keys._hasher.digest(one).hex() for one in (key.plaintext, new.plaintext)]
    assert [secret for secret in (*hidden, *digests, PASSWORD, "argon2") if secret in written] == []


@pytest.mark.parametrize(
    "value", [1.5, b"x", object(), {"deep": [0.1]}, float("nan")], ids=lambda value: type(value).__name__
)
def test_what_can_be_written_in_two_ways_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        checked_details({"name": value})


async def test_any_text_comes_back_as_it_was_digested(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    for name in ("Zo\u00eb \N{SNOWMAN}", 'quo"te', "\u2028", "\U0001f600", "back\\slash"):
        details: dict[str, Any] = {
            "name": name,
            "n": 2**60,
            "none": None,
            "list": [name, {"b": 1, "a": True}],
        }
        async with database.write(tenant.id) as session:
            await AuditLog.record(session, tenant.id, OPERATOR, "thing.done", ("thing", "t_1"), details)
        assert (await accounts.audit.list(tenant.id))[0].details == details
    assert await accounts.audit.verify(tenant.id) is None
