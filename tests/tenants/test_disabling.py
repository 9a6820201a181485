"""Users who are shut out for a while, and let in again."""

from __future__ import annotations

import asyncio

import pytest

from tenants.actors import OPERATOR, Actor
from tenants.errors import LastOwner, OwnAccount, OwnersOnly, ResetInvalid, UserNotFound
from tenants.models import Tenant
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.support.waiting import eventually
from tests.tenants.conftest import gone, refused
from tests.tenants.test_members import PASSWORD, user

pytestmark = pytest.mark.usefixtures("cheap_passwords")


async def test_who_is_disabled_is_out_with_every_key_until_enabled(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    ann = await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "admin")
    project = await accounts.projects.default(tenant.id)
    await accounts.members.add_to_project(tenant.id, project.id, bob.user_id, "member", OPERATOR)
    keys = accounts.keys
    theirs = [
        await keys.create(tenant.id, "asks", OPERATOR, user_id=bob.user_id),
        await keys.create(tenant.id, "runs", OPERATOR, kind="admin", user_id=bob.user_id),
    ]
    others = [
        await keys.create(tenant.id, "ann's", OPERATOR, user_id=ann.user_id),
        await keys.create(tenant.id, "shared", OPERATOR),
    ]
    for one in (*theirs, *others):
        await resolver.resolve(one.plaintext)
    out = await accounts.members.disable(tenant.id, bob.user_id, ann.actor())
    assert out.disabled_at is not None
    assert await gone(resolver, *(one.plaintext for one in theirs)) < 5
    assert not any([await refused(resolver, one.plaintext) for one in others])
    assert await accounts.users.authenticate("bob@example.com", PASSWORD) is None
    assert await accounts.users.find(bob.user_id, tenant.id) is None
    [(place, _)] = await accounts.members.project_members(tenant.id, project.id)
    assert (place.user_id, place.role) == (bob.user_id, "member"), "nothing is taken away"
    made = await keys.create(tenant.id, "meanwhile", OPERATOR, user_id=bob.user_id)
    assert await refused(resolver, made.plaintext)

    await accounts.members.enable(tenant.id, bob.user_id, ann.actor())

    async def all_work() -> bool:
        return not any([await refused(resolver, one.plaintext) for one in (*theirs, made)])

    await eventually(all_work)
    back = await accounts.users.authenticate("bob@example.com", PASSWORD)
    assert back is not None
    assert back.role == "admin"
    assert back.sessions_from == out.disabled_at, "sessions of before stay over"


async def test_a_revoked_key_stays_revoked(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "developer")
    key = await accounts.keys.create(tenant.id, "asks", OPERATOR, user_id=bob.user_id)
    await accounts.members.disable(tenant.id, bob.user_id, OPERATOR)
    await accounts.keys.revoke(tenant.id, key.id, OPERATOR)
    await accounts.members.enable(tenant.id, bob.user_id, OPERATOR)
    assert await refused(resolver, key.plaintext)


async def test_a_token_to_choose_a_password_does_not_outlive_it(
    accounts: AccountServices, tenant: Tenant
) -> None:
    await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "developer")
    before = await accounts.credentials.create_reset(tenant.id, bob.user_id, OPERATOR)
    await accounts.members.disable(tenant.id, bob.user_id, OPERATOR)
    assert await accounts.credentials.request_reset("bob@example.com") is None
    meanwhile = await accounts.credentials.create_reset(tenant.id, bob.user_id, OPERATOR)
    for made in (before, meanwhile):
        with pytest.raises(ResetInvalid):
            await accounts.credentials.reset(made.token, "another long password")
    await accounts.members.enable(tenant.id, bob.user_id, OPERATOR)
    with pytest.raises(ResetInvalid):
        await accounts.credentials.reset(before.token, "another long password")


async def test_an_owner_who_may_come_in_is_left(accounts: AccountServices, tenant: Tenant) -> None:
    ann, bob = await user(accounts, tenant, "ann"), await user(accounts, tenant, "bob")
    members = accounts.members
    await members.disable(tenant.id, bob.user_id, OPERATOR)
    for change in (
        members.disable(tenant.id, ann.user_id, OPERATOR),
        members.remove(tenant.id, ann.user_id, OPERATOR),
        members.update(tenant.id, ann.user_id, OPERATOR, role="admin"),
    ):
        with pytest.raises(LastOwner):
            await change
    await members.remove(tenant.id, bob.user_id, OPERATOR)


async def test_owners_who_disable_each_other_at_once_leave_one(
    accounts: AccountServices, tenant: Tenant
) -> None:
    owners = [await user(accounts, tenant, name) for name in ("ann", "bob", "cid")]
    outcomes = await asyncio.gather(
        *(accounts.members.disable(tenant.id, one.user_id, OPERATOR) for one in owners),
        return_exceptions=True,
    )
    assert [isinstance(outcome, LastOwner) for outcome in outcomes].count(True) == 1
    assert [one.disabled_at is None for one in await accounts.members.list(tenant.id)].count(True) == 1


async def test_nobody_disables_themselves(accounts: AccountServices, tenant: Tenant) -> None:
    ann = await user(accounts, tenant, "ann")
    await user(accounts, tenant, "bob")
    by_key = Actor("api_key", "key_of_ann", user_id=ann.user_id)
    for actor in (ann.actor(), by_key):
        with pytest.raises(OwnAccount):
            await accounts.members.disable(tenant.id, ann.user_id, actor)


async def test_owners_alone_disable_and_enable_owners(accounts: AccountServices, tenant: Tenant) -> None:
    ann, bob = await user(accounts, tenant, "ann"), await user(accounts, tenant, "bob", "admin")
    cid = await user(accounts, tenant, "cid")
    members = accounts.members
    with pytest.raises(OwnersOnly):
        await members.disable(tenant.id, cid.user_id, bob.actor())
    await members.disable(tenant.id, cid.user_id, ann.actor())
    with pytest.raises(OwnersOnly):
        await members.enable(tenant.id, cid.user_id, bob.actor())
    dan = await user(accounts, tenant, "dan", "viewer")
    await members.disable(tenant.id, dan.user_id, bob.actor())


async def test_again_changes_nothing_and_is_not_on_record(accounts: AccountServices, tenant: Tenant) -> None:
    await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "viewer")
    await accounts.keys.create(tenant.id, "asks", OPERATOR, user_id=bob.user_id)
    members = accounts.members
    first = await members.disable(tenant.id, bob.user_id, OPERATOR)
    again = await members.disable(tenant.id, bob.user_id, OPERATOR)
    assert again.disabled_at == first.disabled_at
    for _ in range(2):
        assert (await members.enable(tenant.id, bob.user_id, OPERATOR)).disabled_at is None
    log = [
        entry
        for entry in await accounts.audit.list(tenant.id, limit=100)
        if entry.type in ("user.disabled", "user.enabled")
    ]
    details = {"email": "bob@example.com", "role": "viewer", "keys": 1}
    assert [(entry.type, entry.target_id, entry.details) for entry in log] == [
        ("user.enabled", bob.user_id, details),
        ("user.disabled", bob.user_id, details),
    ]


async def test_another_tenants_users_are_not_found(
    accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    theirs = await user(accounts, other, "eve")
    for change in (accounts.members.disable, accounts.members.enable):
        with pytest.raises(UserNotFound):
            await change(tenant.id, theirs.user_id, OPERATOR)
