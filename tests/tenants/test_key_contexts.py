"""Callers by the ids of their keys: as the key would be resolved, and not at all once it is refused."""

from __future__ import annotations

import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.errors import InvalidApiKey
from tenants.key_contexts import KeyContexts
from tenants.limits.kinds import Limit, Metric
from tenants.resolver import KeyResolver
from tenants.service import account_services

SECRET = "s" * 32


async def test_a_caller_is_the_one_that_the_key_resolves_to_until_it_is_refused(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    accounts = account_services(database, redis_client, SECRET)
    tenant, other = [(await accounts.tenants.create_tenant(name)).id for name in ("acme", "other")]
    user = await accounts.users.create(tenant, "ada@acme.example", "correct horse battery")
    project = await accounts.projects.create(tenant, "batches", OPERATOR)
    key = await accounts.keys.create(tenant, "batches", OPERATOR, project_id=project.id, user_id=user.user_id)
    await accounts.limits.set(tenant, OPERATOR, Limit("key", key.id, "", Metric.TOKENS_PER_DAY, 7))
    contexts, resolver = KeyContexts(database), KeyResolver(database, redis_client, SECRET)

    assert await contexts.of(tenant, key.id) == await resolver.resolve(key.plaintext)
    for wrong_tenant, wrong_key in ((other, key.id), (tenant, "key_none")):
        with pytest.raises(InvalidApiKey):
            await contexts.of(wrong_tenant, wrong_key)

    for breaking, mending in (
        ("UPDATE users SET disabled_at = now()", "UPDATE users SET disabled_at = NULL"),
        ("UPDATE tenants SET disabled_at = now()", "UPDATE tenants SET disabled_at = NULL"),
        (
            "UPDATE projects SET archived_at = now() WHERE name = 'batches'",
            "UPDATE projects SET archived_at = NULL",
        ),
        ("UPDATE api_keys SET expires_at = now()", "UPDATE api_keys SET expires_at = NULL"),
        ("UPDATE api_keys SET revoked_at = now()", "UPDATE api_keys SET revoked_at = NULL"),
    ):
        await execute(database, breaking)
        with pytest.raises(InvalidApiKey):
            await contexts.of(tenant, key.id)
        await execute(database, mending)
        assert (await contexts.of(tenant, key.id)).key_id == key.id


async def execute(database: Database, statement: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(statement))
