from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
import redis.asyncio
from sqlalchemy import text
from structlog.testing import capture_logs

from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey, KeyNotFound, NameTaken, TenantNotFound
from tenants.key_restrictions import KeyRestrictions
from tenants.keys import generate
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.support.statements import Statements
from tests.support.waiting import eventually
from tests.tenants.conftest import SECRET, refused


async def test_a_key_resolves_to_its_tenant(accounts: AccountServices, resolver: KeyResolver) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(
        tenant.id, "ci", OPERATOR, kind="admin", restrictions=KeyRestrictions(frozenset({"usage.read"}))
    )
    assert await resolver.resolve(key.plaintext) == TenantContext(
        tenant.id, "acme", key.id, "admin", frozenset({"usage.read"})
    )


async def test_a_hit_asks_nobody(
    accounts: AccountServices, resolver: KeyResolver, database: Database
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    with Statements(database) as statements:
        await asyncio.gather(*(resolver.resolve(key.plaintext) for _ in range(50)))
    assert len([one for one in statements.seen if one.startswith("SELECT")]) == 1
    with Statements(database) as statements:
        await resolver.resolve(key.plaintext)
    assert statements.seen == []


async def test_nonsense_asks_nobody(resolver: KeyResolver, database: Database) -> None:
    with Statements(database) as statements:
        for nonsense in ("", "sk-whatever", "rs_inference_" + "0" * 49, "\x00", "é" * 1000):
            assert await refused(resolver, nonsense)
    assert statements.seen == []


async def test_unknown_revoked_expired_and_disabled_look_alike(
    accounts: AccountServices, resolver: KeyResolver, database: Database
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    closed = await accounts.tenants.create_tenant("closed")
    revoked = await accounts.keys.create(tenant.id, "revoked", OPERATOR)
    await accounts.keys.revoke(tenant.id, revoked.id, OPERATOR)
    expired = await accounts.keys.create(
        tenant.id,
        "expired",
        OPERATOR,
        restrictions=KeyRestrictions(expires_at=datetime.now(UTC) + timedelta(hours=1)),
    )
    async with database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE id = :id"), {"id": expired.id}
        )
    orphan = await accounts.keys.create(closed.id, "orphan", OPERATOR)
    await accounts.tenants.set_tenant_disabled(closed.id, True)
    said = set()
    for plaintext in (
        generate("inference").plaintext,
        revoked.plaintext,
        expired.plaintext,
        orphan.plaintext,
    ):
        with pytest.raises(InvalidApiKey) as caught:
            await resolver.resolve(plaintext)
        said.add(str(caught.value))
    assert len(said) == 1


async def test_revocation_is_heard_within_a_second(accounts: AccountServices, resolver: KeyResolver) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    revoked, kept = [await accounts.keys.create(tenant.id, name, OPERATOR) for name in ("revoked", "kept")]
    await resolver.resolve(revoked.plaintext)
    await resolver.resolve(kept.plaintext)
    await accounts.keys.revoke(tenant.id, revoked.id, OPERATOR)
    assert await eventually(lambda: refused(resolver, revoked.plaintext)) < 1.0
    assert not await refused(resolver, kept.plaintext)
    await accounts.keys.revoke(tenant.id, revoked.id, OPERATOR)  # again changes nothing


async def test_a_disabled_tenant_is_shut_out_within_a_second_and_let_in_again(
    accounts: AccountServices, resolver: KeyResolver
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    await resolver.resolve(key.plaintext)
    await accounts.tenants.set_tenant_disabled(tenant.id, True)
    assert await eventually(lambda: refused(resolver, key.plaintext)) < 1.0
    await accounts.tenants.set_tenant_disabled(tenant.id, False)

    async def let_in() -> bool:
        return not await refused(resolver, key.plaintext)

    assert await eventually(let_in) < 1.0


class AnHourOn(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=1)


async def test_a_key_expires_while_cached(
    accounts: AccountServices, resolver: KeyResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(
        tenant.id,
        "brief",
        OPERATOR,
        restrictions=KeyRestrictions(expires_at=datetime.now(UTC) + timedelta(hours=1)),
    )
    await resolver.resolve(key.plaintext)
    monkeypatch.setattr("tenants.resolver.datetime", AnHourOn)
    assert await refused(resolver, key.plaintext)


async def test_another_secret_knows_no_key(
    accounts: AccountServices, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    assert await refused(KeyResolver(database, redis_client, SECRET[::-1]), key.plaintext)


async def test_a_key_is_neither_stored_nor_logged_nor_shown(
    accounts: AccountServices, resolver: KeyResolver, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        tenant = await accounts.tenants.create_tenant("acme")
        key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
        await resolver.resolve(key.plaintext)
    secret_part = key.plaintext[len(key.prefix) :]
    async with database.read(EVERY_TENANT) as session:
        stored = (await session.execute(text("SELECT row_to_json(k)::text FROM api_keys k"))).scalars().all()
    [(listed, _, _)] = await accounts.keys.list(tenant.id)
    shown = "".join([*stored, repr(key), str(key), repr(listed), repr(resolver), repr(lines), caplog.text])
    assert secret_part not in shown
    assert listed.prefix in repr(listed)


async def test_last_use_is_noted_to_the_minute(
    accounts: AccountServices, resolver: KeyResolver, database: Database
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    assert (await accounts.keys.get(tenant.id, key.id))[0].last_used_at is None
    await resolver.resolve(key.plaintext)

    async def noted() -> bool:
        return (await accounts.keys.get(tenant.id, key.id))[0].last_used_at is not None

    await eventually(noted)
    fresh = KeyResolver(database, resolver._cache._redis, SECRET)
    with Statements(database) as statements:
        await fresh.resolve(key.plaintext)
        await fresh.close()
    assert not any(statement.startswith("UPDATE") for statement in statements.seen)


async def test_uses_are_noted_together_and_none_is_lost_at_the_end(
    accounts: AccountServices, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    made = [await accounts.keys.create(tenant.id, str(n), OPERATOR) for n in range(5)]
    resolver = KeyResolver(database, redis_client, SECRET)
    with Statements(database) as statements:
        await asyncio.gather(*(resolver.resolve(key.plaintext) for key in made))
        await resolver.close()
    assert len([one for one in statements.seen if one.startswith("UPDATE api_keys")]) == 1
    assert all(key.last_used_at is not None for key, *_ in await accounts.keys.list(tenant.id))


async def test_uses_that_cannot_be_noted_fail_nobody_and_later_ones_are_noted(
    accounts: AccountServices,
    database: Database,
    redis_client: redis.asyncio.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenant = await accounts.tenants.create_tenant("acme")
    lost, noted = [await accounts.keys.create(tenant.id, name, OPERATOR) for name in ("lost", "noted")]
    monkeypatch.setattr("tenants.resolver.NOTE_AFTER", 0.01)
    resolver = KeyResolver(database, redis_client, SECRET)
    with monkeypatch.context() as away, capture_logs() as lines:

        async def unavailable(*_: object) -> None:
            raise DatabaseUnavailable("away")

        away.setattr("tenants.repository.TenantDirectory.note_keys_used", unavailable)
        await resolver.resolve(lost.plaintext)
        await eventually(lambda: [line["keys"] for line in lines] == [1])
    assert lines[0]["event"] == "last use of keys was not recorded: the database is unavailable"
    await resolver.resolve(noted.plaintext)
    await resolver.close()
    used = {key.name for key, *_ in await accounts.keys.list(tenant.id) if key.last_used_at is not None}
    assert used == {"noted"}


async def test_a_tenants_keys_are_its_own(accounts: AccountServices) -> None:
    ours, theirs = [await accounts.tenants.create_tenant(name) for name in ("ours", "theirs")]
    key = await accounts.keys.create(theirs.id, "ci", OPERATOR)
    assert await accounts.keys.list(ours.id) == []
    with pytest.raises(KeyNotFound):
        await accounts.keys.get(ours.id, key.id)
    with pytest.raises(KeyNotFound):
        await accounts.keys.revoke(ours.id, key.id, OPERATOR)
    assert (await accounts.keys.get(theirs.id, key.id))[0].revoked_at is None


async def test_names_are_taken_once(accounts: AccountServices) -> None:
    made = await accounts.tenants.create_tenant("acme")
    with pytest.raises(NameTaken, match="acme"):
        await accounts.tenants.create_tenant("acme")
    assert (
        (await accounts.tenants.find_tenant("acme")).id
        == (await accounts.tenants.find_tenant(made.id)).id
        == made.id
    )
    with pytest.raises(TenantNotFound, match="nobody"):
        await accounts.tenants.find_tenant("nobody")
    assert [tenant.name for tenant in await accounts.tenants.list_tenants()] == ["acme"]


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\x00b", "line\nbreak"])
async def test_names_no_list_could_show_are_refused(accounts: AccountServices, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        await accounts.tenants.create_tenant(name)


async def test_keys_are_made_for_tenants_that_exist_with_sane_settings(accounts: AccountServices) -> None:
    with pytest.raises(TenantNotFound):
        await accounts.keys.create("tnt_nobody", "ci", OPERATOR)
    with pytest.raises(TenantNotFound):
        await accounts.tenants.set_tenant_disabled("tnt_nobody", True)
    tenant = await accounts.tenants.create_tenant("acme")
    with pytest.raises(ValueError, match="scopes"):
        await accounts.keys.create(
            tenant.id, "ci", OPERATOR, restrictions=KeyRestrictions(frozenset({"Everything!"}))
        )
    for moment in (datetime.now(UTC) - timedelta(seconds=1), datetime(2099, 1, 1)):
        with pytest.raises(ValueError, match="expires_at"):
            await accounts.keys.create(
                tenant.id, "ci", OPERATOR, restrictions=KeyRestrictions(expires_at=moment)
            )
