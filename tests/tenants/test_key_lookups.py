"""What looking keys up costs the database: few queries, however many keys come at once."""

from __future__ import annotations

import asyncio

from sqlalchemy import event

from db.batch_loader import MAX_QUERIES
from db.session import Database
from tenants.actors import OPERATOR
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tenants.keys import generate
from tenants.models import Tenant
from tenants.resolver import KeyResolver
from tenants.service import AccountServices


async def test_keys_that_come_at_once_are_looked_up_together(
    accounts: AccountServices, resolver: KeyResolver, database: Database
) -> None:
    owners = [await accounts.tenants.create_tenant(name) for name in ("ash", "birch")]
    keys = {}
    for number in range(6):
        tenant = owners[number % 2]
        made = await accounts.keys.create(tenant.id, f"key {number}", OPERATOR)
        keys[made.plaintext] = tenant.id
    unknown = generate("inference").plaintext
    queries: list[str] = []
    event.listen(database.engine.sync_engine, "before_cursor_execute", lambda *call: queries.append(call[2]))

    async def tenant_of(plaintext: str) -> str:
        return (await resolver.resolve(plaintext)).tenant_id

    found = await asyncio.gather(*map(tenant_of, keys), tenant_of(unknown), return_exceptions=True)
    assert found[:-1] == list(keys.values()), "each its own tenant"
    assert isinstance(found[-1], InvalidApiKey)
    assert sum("FROM api_keys" in query for query in queries) <= MAX_QUERIES


async def test_a_key_revoked_among_others_lets_nobody_in(
    accounts: AccountServices, tenant: Tenant, resolver: KeyResolver
) -> None:
    good, bad = [await accounts.keys.create(tenant.id, name, OPERATOR) for name in ("good", "bad")]
    await accounts.keys.revoke(tenant.id, bad.id, OPERATOR)
    found, refusal = await asyncio.gather(
        resolver.resolve(good.plaintext), resolver.resolve(bad.plaintext), return_exceptions=True
    )
    assert isinstance(found, TenantContext)
    assert found.key_id == good.id
    assert isinstance(refusal, InvalidApiKey)
