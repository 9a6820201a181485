"""Somebody who signed in asks as the holder of a key of the default project would."""

from __future__ import annotations

import pytest
import redis.asyncio

from db.session import Database
from engine.protocol import PriorityClass
from tenants.actors import OPERATOR
from tenants.errors import UserNotFound
from tenants.limits.kinds import Limit, Metric
from tenants.resolver import KeyResolver
from tenants.service import AccountServices, account_services
from tenants.user_contexts import UserContexts

pytestmark = pytest.mark.usefixtures("cheap_passwords")

SECRET = "a secret of at least thirty-two characters"


@pytest.fixture
def account(database: Database, redis_client: redis.asyncio.Redis) -> AccountServices:
    return account_services(database, redis_client, SECRET)


async def test_the_same_limits_and_rules_as_with_a_key(
    database: Database, redis_client: redis.asyncio.Redis, account: AccountServices
) -> None:
    tenant = await account.tenants.create_tenant("acme")
    user = await account.users.create(tenant.id, "ada@acme.example", "correct horse battery")
    project = await account.projects.default(tenant.id)
    for scope, scope_id in (("tenant", tenant.id), ("project", project.id)):
        limit = Limit(scope, scope_id, "", Metric("requests_per_minute"), 7)  # type: ignore[arg-type]
        await account.limits.set(tenant.id, OPERATOR, limit)
    await account.projects.set_models(tenant.id, project.id, ["sapling:secret"], OPERATOR, denied=True)
    await account.projects.set_service_tiers(
        tenant.id, project.id, OPERATOR, tiers=[], auto=PriorityClass.DEFAULT
    )
    key = await account.keys.create(tenant.id, "hers", OPERATOR, user_id=user.user_id)

    person = await UserContexts(database).of(tenant.id, user.user_id)
    holder = await KeyResolver(database, redis_client, SECRET).resolve(key.plaintext)

    assert person.key_id == user.user_id
    for name in ("tenant_id", "kind", "plan", "project_id", "user_id", "limits", "auto_tier", "scopes"):
        assert getattr(person, name) == getattr(holder, name), name
    assert len(person.limits) == 2
    assert not person.may_use("sapling:secret")
    assert person.may_use("sapling")
    assert not person.plan.terms[PriorityClass.FLEX].allowed


async def test_who_is_gone_asks_nothing(database: Database, account: AccountServices) -> None:
    callers = UserContexts(database)
    tenant, other = [await account.tenants.create_tenant(name) for name in ("acme", "birch")]
    await account.users.create(tenant.id, "ada@acme.example", "correct horse battery")
    user = await account.users.create(tenant.id, "grace@acme.example", "correct horse battery", role="admin")
    await callers.of(tenant.id, user.user_id)
    for tenant_id, user_id in ((other.id, user.user_id), (tenant.id, "usr_absent"), ("tnt_absent", "usr_x")):
        with pytest.raises(UserNotFound):
            await callers.of(tenant_id, user_id)
    await account.tenants.set_tenant_disabled(tenant.id, True)
    with pytest.raises(UserNotFound):
        await callers.of(tenant.id, user.user_id)
    await account.tenants.set_tenant_disabled(tenant.id, False)
    await account.members.remove(tenant.id, user.user_id, OPERATOR)
    with pytest.raises(UserNotFound):
        await callers.of(tenant.id, user.user_id)
