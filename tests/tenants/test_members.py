"""Users, their roles, their places in projects, and invitations."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from db.session import Database
from tenants.accounts import Membership
from tenants.actors import OPERATOR, Actor
from tenants.audit.repository import AuditFilter
from tenants.errors import (
    InviteAccepted,
    InviteInvalid,
    InviteNotFound,
    LastOwner,
    NameTaken,
    OwnersOnly,
    ProjectNotFound,
    TenantNotFound,
    UserNotFound,
)
from tenants.keys import generate_invite
from tenants.models import Tenant
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.tenants.conftest import gone, refused

pytestmark = pytest.mark.usefixtures("cheap_passwords")

PASSWORD = "correct horse battery"


async def user(accounts: AccountServices, tenant: Tenant, name: str, role: str = "owner") -> Membership:
    return await accounts.users.create(tenant.id, f"{name}@example.com", PASSWORD, role=role)  # type: ignore[arg-type]


async def test_the_last_owner_stays(accounts: AccountServices, tenant: Tenant) -> None:
    ann, bob = await user(accounts, tenant, "ann"), await user(accounts, tenant, "bob", "admin")
    for change in (
        accounts.members.remove(tenant.id, ann.user_id, OPERATOR),
        accounts.members.update(tenant.id, ann.user_id, OPERATOR, role="admin"),
    ):
        with pytest.raises(LastOwner):
            await change
    await accounts.members.update(tenant.id, ann.user_id, OPERATOR, role="owner", name="Ann")
    await accounts.members.update(tenant.id, bob.user_id, OPERATOR, role="owner")
    await accounts.members.update(tenant.id, ann.user_id, OPERATOR, role="viewer")
    with pytest.raises(LastOwner):
        await accounts.members.remove(tenant.id, bob.user_id, OPERATOR)


async def test_owners_who_demote_each_other_at_once_leave_one(
    accounts: AccountServices, tenant: Tenant
) -> None:
    owners = [await user(accounts, tenant, name) for name in ("ann", "bob", "cid")]
    outcomes = await asyncio.gather(
        *(accounts.members.update(tenant.id, one.user_id, OPERATOR, role="viewer") for one in owners),
        return_exceptions=True,
    )
    assert [isinstance(outcome, LastOwner) for outcome in outcomes].count(True) == 1
    roles = [one.role for one in await accounts.members.list(tenant.id)]
    assert sorted(roles) == ["owner", "viewer", "viewer"]


async def test_only_owners_make_and_unmake_owners(accounts: AccountServices, tenant: Tenant) -> None:
    ann, bob = await user(accounts, tenant, "ann"), await user(accounts, tenant, "bob", "admin")
    await user(accounts, tenant, "cid")
    made_by_bob = Actor("api_key", "key_of_bob", user_id=bob.user_id)
    for actor in (bob.actor(), made_by_bob):
        for change in (
            accounts.members.update(tenant.id, bob.user_id, actor, role="owner"),
            accounts.members.update(tenant.id, ann.user_id, actor, role="viewer"),
            accounts.members.remove(tenant.id, ann.user_id, actor),
            accounts.invites.create(tenant.id, "dan@example.com", "owner", actor),
        ):
            with pytest.raises(OwnersOnly):
                await change
    await accounts.members.update(tenant.id, bob.user_id, ann.actor(), role="owner")


async def test_who_is_removed_is_out_everywhere(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "developer")
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    await accounts.members.add_to_project(tenant.id, project.id, bob.user_id, "member", OPERATOR)
    key = await accounts.keys.create(tenant.id, "bob's", OPERATOR, user_id=bob.user_id)
    unowned = await accounts.keys.create(tenant.id, "shared", OPERATOR)
    for one in (key, unowned):
        await resolver.resolve(one.plaintext)
    await accounts.members.remove(tenant.id, bob.user_id, OPERATOR)
    assert await gone(resolver, key.plaintext) < 5
    assert not await refused(resolver, unowned.plaintext)
    assert await accounts.users.authenticate("bob@example.com", PASSWORD) is None
    assert await accounts.users.find(bob.user_id, tenant.id) is None
    assert await accounts.members.project_members(tenant.id, project.id) == []
    assert [one.email for one in await accounts.members.list(tenant.id)] == ["ann@example.com"]
    for call in (
        accounts.members.get(tenant.id, bob.user_id),
        accounts.members.remove(tenant.id, bob.user_id, OPERATOR),
        accounts.members.update(tenant.id, bob.user_id, OPERATOR, role="admin"),
    ):
        with pytest.raises(UserNotFound):
            await call
    back = await user(accounts, tenant, "bob")
    assert back.user_id != bob.user_id, "the address is free again"


async def test_who_may_do_less_loses_their_admin_keys(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    await user(accounts, tenant, "ann")
    bob = await user(accounts, tenant, "bob", "admin")
    admin = await accounts.keys.create(tenant.id, "a", OPERATOR, kind="admin", user_id=bob.user_id)
    asks = await accounts.keys.create(tenant.id, "b", OPERATOR, user_id=bob.user_id)
    for key in (admin, asks):
        await resolver.resolve(key.plaintext)
    await accounts.members.update(tenant.id, bob.user_id, OPERATOR, role="owner")
    assert not await refused(resolver, admin.plaintext)
    await accounts.members.update(tenant.id, bob.user_id, OPERATOR, role="developer")
    assert await gone(resolver, admin.plaintext) < 5
    assert not await refused(resolver, asks.plaintext)


async def test_places_in_projects(accounts: AccountServices, resolver: KeyResolver, tenant: Tenant) -> None:
    bob = await user(accounts, tenant, "bob")
    web = await accounts.projects.create(tenant.id, "web", OPERATOR)
    members = accounts.members
    place, person = await members.add_to_project(tenant.id, web.id, bob.user_id, "member", OPERATOR)
    assert (place.role, person.email) == ("member", "bob@example.com")
    await members.add_to_project(tenant.id, web.id, bob.user_id, "owner", OPERATOR)
    [(place, _)] = await members.project_members(tenant.id, web.id)
    assert place.role == "owner", "again: the role of now"
    place, _ = await members.update_in_project(tenant.id, web.id, bob.user_id, "member", OPERATOR)
    assert place.role == "member"
    [(_, project)] = await members.memberships(tenant.id, [bob.user_id])
    assert project.id == web.id
    there = await accounts.keys.create(tenant.id, "a", OPERATOR, project_id=web.id, user_id=bob.user_id)
    elsewhere = await accounts.keys.create(tenant.id, "b", OPERATOR, user_id=bob.user_id)
    for key in (there, elsewhere):
        await resolver.resolve(key.plaintext)
    await members.remove_from_project(tenant.id, web.id, bob.user_id, OPERATOR)
    assert await gone(resolver, there.plaintext) < 5
    assert not await refused(resolver, elsewhere.plaintext)
    for call in (
        members.project_member(tenant.id, web.id, bob.user_id),
        members.update_in_project(tenant.id, web.id, bob.user_id, "member", OPERATOR),
        members.remove_from_project(tenant.id, web.id, bob.user_id, OPERATOR),
    ):
        with pytest.raises(UserNotFound):
            await call
    with pytest.raises(ValueError, match="role"):
        await members.add_to_project(tenant.id, web.id, bob.user_id, "admin", OPERATOR)  # type: ignore[arg-type]


async def test_a_tenants_people_are_its_own(accounts: AccountServices, tenant: Tenant, other: Tenant) -> None:
    await user(accounts, tenant, "ann")
    theirs = await user(accounts, other, "bob")
    project = await accounts.projects.default(tenant.id)
    foreign = await accounts.projects.default(other.id)
    assert len(await accounts.members.list(tenant.id)) == 1
    assert await accounts.members.list(tenant.id, emails=["bob@example.com"]) == []
    assert len(await accounts.members.list(other.id, emails=["BOB@example.com"])) == 1
    for call in (
        accounts.members.get(tenant.id, theirs.user_id),
        accounts.members.update(tenant.id, theirs.user_id, OPERATOR, role="viewer"),
        accounts.members.remove(tenant.id, theirs.user_id, OPERATOR),
        accounts.members.add_to_project(tenant.id, project.id, theirs.user_id, "member", OPERATOR),
        accounts.members.get(tenant.id, "usr_\x00"),
    ):
        with pytest.raises(UserNotFound):
            await call
    with pytest.raises(ProjectNotFound):
        await accounts.members.add_to_project(tenant.id, foreign.id, theirs.user_id, "member", OPERATOR)
    with pytest.raises(ProjectNotFound):
        await accounts.members.project_members(tenant.id, foreign.id)


# Invitations ----------------------------------------------------------------------------------------------


async def test_an_invitation_makes_a_user_once(accounts: AccountServices, tenant: Tenant) -> None:
    await user(accounts, tenant, "ann")
    web = await accounts.projects.create(tenant.id, "web", OPERATOR)
    old = await accounts.projects.create(tenant.id, "old", OPERATOR)
    made = await accounts.invites.create(
        tenant.id, "Bob@Example.com", "developer", OPERATOR, projects={web.id: "owner", old.id: "member"}
    )
    await accounts.projects.archive(tenant.id, old.id, OPERATOR)
    account = await accounts.invites.accept(made.token, PASSWORD, name="Bob")
    assert (account.email, account.role, account.tenant_id) == ("bob@example.com", "developer", tenant.id)
    assert await accounts.users.authenticate("bob@example.com", PASSWORD) is not None
    [(place, project)] = await accounts.members.memberships(tenant.id, [account.user_id])
    assert (place.role, project.id) == ("owner", web.id), "and not what was archived meanwhile"
    with pytest.raises(InviteInvalid):
        await accounts.invites.accept(made.token, PASSWORD)
    with pytest.raises(InviteAccepted):
        await accounts.invites.delete(tenant.id, made.invite.id, OPERATOR)
    assert (await accounts.invites.get(tenant.id, made.invite.id)).accepted_at is not None


async def test_of_several_who_accept_at_once_one_does(accounts: AccountServices, tenant: Tenant) -> None:
    made = await accounts.invites.create(tenant.id, "bob@example.com", "viewer", OPERATOR)
    outcomes = await asyncio.gather(
        *(accounts.invites.accept(made.token, PASSWORD) for _ in range(3)), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == [
        "InviteInvalid",
        "InviteInvalid",
        "Membership",
    ]
    assert len(await accounts.members.list(tenant.id)) == 1


async def test_tokens_that_are_worth_nothing_look_alike(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    expired, deleted, closed = [
        await accounts.invites.create(owner.id, f"{name}@example.com", "viewer", OPERATOR)
        for owner, name in ((tenant, "a"), (tenant, "b"), (other, "c"))
    ]
    await accounts.invites.delete(tenant.id, deleted.invite.id, OPERATOR)
    await accounts.tenants.set_tenant_disabled(other.id, True)
    async with database.write(tenant.id) as session:
        await session.execute(
            text("UPDATE invites SET expires_at = now() - interval '1 s' WHERE id = :id"),
            {"id": expired.invite.id},
        )
    said = set()
    for token in (expired.token, deleted.token, closed.token, generate_invite().plaintext, "", "\x00"):
        with pytest.raises(InviteInvalid) as caught:
            await accounts.invites.accept(token, PASSWORD)
        said.add(str(caught.value))
    assert len(said) == 1
    with pytest.raises(InviteNotFound):
        await accounts.invites.get(tenant.id, deleted.invite.id)


async def test_a_repeated_invitation_replaces_the_one_before(
    accounts: AccountServices, tenant: Tenant
) -> None:
    create = accounts.invites.create
    first = await create(tenant.id, "bob@example.com", "viewer", OPERATOR)
    await asyncio.gather(*(create(tenant.id, "Bob@example.com", "viewer", OPERATOR) for _ in range(3)))
    last = await create(tenant.id, "bob@example.com", "developer", OPERATOR)
    other = await create(tenant.id, "eve@example.com", "viewer", OPERATOR)
    assert {invite.id for invite in await accounts.invites.list(tenant.id)} == {
        last.invite.id,
        other.invite.id,
    }
    with pytest.raises(InviteInvalid):
        await accounts.invites.accept(first.token, PASSWORD)
    deleted = await accounts.audit.list(tenant.id, AuditFilter(types=("invite.deleted",)))
    assert len(deleted) == 4
    assert deleted[0].details["replaced_by"] == last.invite.id
    assert (await accounts.invites.accept(last.token, PASSWORD)).role == "developer"


async def test_what_is_wrong_with_an_invitation_is_named(
    accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    await user(accounts, tenant, "ann")
    await user(accounts, other, "bob")
    theirs = await accounts.projects.default(other.id)
    create = accounts.invites.create
    with pytest.raises(NameTaken):
        await create(tenant.id, "ann@example.com", "viewer", OPERATOR)
    with pytest.raises(ProjectNotFound):
        await create(tenant.id, "new@example.com", "viewer", OPERATOR, projects={theirs.id: "member"})
    for field, arguments, options in (
        ("email", ("nobody", "viewer"), {}),
        ("role", ("new@example.com", "root"), {}),
        ("role", ("new@example.com", "viewer"), {"projects": {theirs.id: "root"}}),
        ("expires_at", ("new@example.com", "viewer"), {"life": timedelta(days=91)}),
    ):
        with pytest.raises(ValueError, match=field):
            await create(tenant.id, *arguments, OPERATOR, **options)  # type: ignore[arg-type]
    with pytest.raises(TenantNotFound):
        await create("tnt_nobody", "new@example.com", "viewer", OPERATOR)
    # That another tenant knows the address, whoever invites is not told; whoever accepts has it anyway.
    made = await create(tenant.id, "bob@example.com", "viewer", OPERATOR)
    with pytest.raises(ValueError, match="password"):
        await accounts.invites.accept(made.token, "short")
    with pytest.raises(NameTaken):
        await accounts.invites.accept(made.token, PASSWORD)
    assert (await accounts.invites.get(tenant.id, made.invite.id)).accepted_at is None
    with pytest.raises(InviteNotFound):
        await accounts.invites.delete(other.id, made.invite.id, OPERATOR)


async def test_a_token_is_neither_stored_nor_logged_nor_shown(
    accounts: AccountServices, tenant: Tenant, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        made = await accounts.invites.create(tenant.id, "bob@example.com", "viewer", OPERATOR)
        await accounts.invites.accept(made.token, PASSWORD)
    async with database.read(tenant.id) as session:
        stored = (await session.execute(text("SELECT row_to_json(i)::text FROM invites i"))).scalars().all()
        stored += (
            (await session.execute(text("SELECT row_to_json(a)::text FROM audit_log a"))).scalars().all()
        )
        stored += (await session.execute(text("SELECT row_to_json(u)::text FROM users u"))).scalars().all()
    shown = "".join([*stored, repr(made), str(made.invite), repr(lines), caplog.text])
    assert made.token[len("rs_invite_") + 4 :] not in shown
    assert PASSWORD not in shown
