from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import Database
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey, KeyNotFound, NameTaken, TenantNotFound
from tenants.keys import generate
from tenants.resolver import KeyResolver
from tenants.service import TenantService
from tests.support.statements import Statements
from tests.support.waiting import eventually

SECRET = "a server's secret of enough length"


@pytest.fixture
def service(database: Database, redis_client: redis.asyncio.Redis) -> TenantService:
    return TenantService(database, redis_client, SECRET)


@pytest.fixture
async def resolver(database: Database, redis_client: redis.asyncio.Redis) -> AsyncIterator[KeyResolver]:
    made = KeyResolver(database, redis_client, SECRET)
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


async def refused(resolver: KeyResolver, plaintext: str) -> bool:
    try:
        await resolver.resolve(plaintext)
    except InvalidApiKey:
        return True
    return False


async def test_a_key_resolves_to_its_tenant(service: TenantService, resolver: KeyResolver) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci", kind="admin", scopes=frozenset({"usage.read"}))
    assert await resolver.resolve(key.plaintext) == TenantContext(
        tenant.id, "acme", key.id, "admin", frozenset({"usage.read"})
    )


async def test_a_hit_asks_nobody(service: TenantService, resolver: KeyResolver, database: Database) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci")
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
    service: TenantService, resolver: KeyResolver, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    closed = await service.create_tenant("closed")
    revoked = await service.create_key(tenant.id, "revoked")
    await service.revoke_key(tenant.id, revoked.id)
    expired = await service.create_key(
        tenant.id, "expired", expires_at=datetime.now(UTC) + timedelta(hours=1)
    )
    async with database.write() as session:
        await session.execute(
            text("UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE id = :id"), {"id": expired.id}
        )
    orphan = await service.create_key(closed.id, "orphan")
    await service.set_tenant_disabled(closed.id, True)
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


async def test_revocation_is_heard_within_a_second(service: TenantService, resolver: KeyResolver) -> None:
    tenant = await service.create_tenant("acme")
    revoked, kept = [await service.create_key(tenant.id, name) for name in ("revoked", "kept")]
    await resolver.resolve(revoked.plaintext)
    await resolver.resolve(kept.plaintext)
    await service.revoke_key(tenant.id, revoked.id)
    assert await eventually(lambda: refused(resolver, revoked.plaintext)) < 1.0
    assert not await refused(resolver, kept.plaintext)
    await service.revoke_key(tenant.id, revoked.id)  # again changes nothing


async def test_a_disabled_tenant_is_shut_out_within_a_second_and_let_in_again(
    service: TenantService, resolver: KeyResolver
) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci")
    await resolver.resolve(key.plaintext)
    await service.set_tenant_disabled(tenant.id, True)
    assert await eventually(lambda: refused(resolver, key.plaintext)) < 1.0
    await service.set_tenant_disabled(tenant.id, False)

    async def let_in() -> bool:
        return not await refused(resolver, key.plaintext)

    assert await eventually(let_in) < 1.0


async def test_a_key_expires_while_cached(service: TenantService, resolver: KeyResolver) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "brief", expires_at=datetime.now(UTC) + timedelta(seconds=1))
    await resolver.resolve(key.plaintext)
    assert 0.3 < await eventually(lambda: refused(resolver, key.plaintext), 3) < 1.5


async def test_another_secret_knows_no_key(
    service: TenantService, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci")
    assert await refused(KeyResolver(database, redis_client, SECRET[::-1]), key.plaintext)


async def test_the_key_is_nowhere_but_with_its_holder(
    service: TenantService, resolver: KeyResolver, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci")
    await resolver.resolve(key.plaintext)
    secret_part = key.plaintext[len(key.prefix) :]
    async with database.read() as session:
        stored = (await session.execute(text("SELECT row_to_json(k)::text FROM api_keys k"))).scalars().all()
    [listed] = await service.list_keys(tenant.id)
    shown = "".join([*stored, repr(key), str(key), repr(listed), repr(resolver), caplog.text])
    assert secret_part not in shown
    assert listed.prefix in repr(listed)


async def test_last_use_is_noted_to_the_minute(
    service: TenantService, resolver: KeyResolver, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    key = await service.create_key(tenant.id, "ci")
    assert (await service.find_key(tenant.id, key.id)).last_used_at is None
    await resolver.resolve(key.plaintext)

    async def noted() -> bool:
        return (await service.find_key(tenant.id, key.id)).last_used_at is not None

    await eventually(noted)
    fresh = KeyResolver(database, resolver._cache._redis, SECRET)
    with Statements(database) as statements:
        await fresh.resolve(key.plaintext)
        await fresh.close()
    assert not any(statement.startswith("UPDATE") for statement in statements.seen)


async def test_a_tenants_keys_are_its_own(service: TenantService) -> None:
    ours, theirs = [await service.create_tenant(name) for name in ("ours", "theirs")]
    key = await service.create_key(theirs.id, "ci")
    assert await service.list_keys(ours.id) == []
    with pytest.raises(KeyNotFound):
        await service.find_key(ours.id, key.id)
    with pytest.raises(KeyNotFound):
        await service.revoke_key(ours.id, key.id)
    assert (await service.find_key(theirs.id, key.id)).revoked_at is None


async def test_names_are_taken_once(service: TenantService) -> None:
    made = await service.create_tenant("acme")
    with pytest.raises(NameTaken, match="acme"):
        await service.create_tenant("acme")
    assert (await service.find_tenant("acme")).id == (await service.find_tenant(made.id)).id == made.id
    with pytest.raises(TenantNotFound, match="nobody"):
        await service.find_tenant("nobody")
    assert [tenant.name for tenant in await service.list_tenants()] == ["acme"]


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\x00b", "line\nbreak"])
async def test_names_no_list_could_show_are_refused(service: TenantService, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        await service.create_tenant(name)


async def test_keys_are_made_for_tenants_that_exist_with_sane_settings(service: TenantService) -> None:
    with pytest.raises(TenantNotFound):
        await service.create_key("tnt_nobody", "ci")
    with pytest.raises(TenantNotFound):
        await service.set_tenant_disabled("tnt_nobody", True)
    tenant = await service.create_tenant("acme")
    with pytest.raises(ValueError, match="scopes"):
        await service.create_key(tenant.id, "ci", scopes=frozenset({"Everything!"}))
    for moment in (datetime.now(UTC) - timedelta(seconds=1), datetime(2099, 1, 1)):
        with pytest.raises(ValueError, match="expires_at"):
            await service.create_key(tenant.id, "ci", expires_at=moment)
