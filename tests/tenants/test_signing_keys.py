"""An organization's public keys: registered once, at most so many, seen by itself alone, and audited."""

from __future__ import annotations

import pytest
import redis.asyncio

from db.session import Database
from engine.signing.keys import SigningKey
from tenants.actors import OPERATOR
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound
from tenants.service import TenantService
from tenants.signing_keys import service
from tenants.signing_keys.errors import SigningKeyKnown, SigningKeyNotFound, TooManySigningKeys
from tenants.signing_keys.service import SigningKeys


async def test_keys_are_registered_and_removed(
    database: Database, redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_KEYS", 2)
    tenants, keys = TenantService(database, redis_client), SigningKeys(database)
    ours, theirs = [(await tenants.create_tenant(name)).id for name in ("ours", "theirs")]
    pem = SigningKey.make().public.pem
    first = await keys.add(ours, " release ", pem, OPERATOR)
    assert first.name == "release"
    with pytest.raises(SigningKeyKnown, match="as 'release'"):
        await keys.add(ours, "again", pem, OPERATOR)
    await keys.add(theirs, "the same, of another", pem, OPERATOR)
    second = await keys.add(ours, "second", SigningKey.make().public.pem, OPERATOR)
    with pytest.raises(TooManySigningKeys):
        await keys.add(ours, "third", SigningKey.make().public.pem, OPERATOR)
    assert [row.id for row in await keys.list(ours)] == [second.id, first.id]
    with pytest.raises(SigningKeyNotFound):
        await keys.remove(theirs, first.id, OPERATOR)
    await keys.remove(ours, first.id, OPERATOR)
    with pytest.raises(SigningKeyNotFound):
        await keys.remove(ours, first.id, OPERATOR)
    assert (await keys.add(ours, "back", pem, OPERATOR)).key_id == first.key_id
    with pytest.raises(TenantNotFound):
        await keys.add("tnt_nobody", "release", pem, OPERATOR)
    for wrong in ("", SigningKey.make().pem, "x" * 5000):
        with pytest.raises(ValueError, match=r"^public_key: "):
            await keys.add(theirs, "wrong", wrong, OPERATOR)


async def test_the_rule_is_set_and_audited(database: Database, redis_client: redis.asyncio.Redis) -> None:
    tenant = (await TenantService(database, redis_client).create_tenant("ours")).id
    keys = SigningKeys(database)
    assert not await keys.accepts_signed_only(tenant)
    for wanted in (True, True, False):
        await keys.accept_signed_only(tenant, wanted, OPERATOR)
        assert await keys.accepts_signed_only(tenant) is wanted
    entries = await AuditLog(database).list(tenant, newest_first=False, limit=10)
    told = [one.details["signed_adapters_only"] for one in entries if one.type == "organization.updated"]
    assert told == [True, False], "what changed nothing is no entry"
    with pytest.raises(TenantNotFound):
        await keys.accepts_signed_only("tnt_nobody")
