"""Projects, the service accounts in them, and what ends with them."""

from __future__ import annotations

import asyncio

import pytest

from db.session import Database
from tenants.actors import OPERATOR
from tenants.errors import (
    DefaultProjectKept,
    NameTaken,
    ProjectArchived,
    ProjectNotFound,
    ServiceAccountNotFound,
)
from tenants.models import Tenant
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.tenants.conftest import gone, refused

pytestmark = pytest.mark.usefixtures("cheap_passwords")


async def test_a_tenant_is_made_with_its_default_project(
    accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    [project] = await accounts.projects.list(tenant.id)
    assert (project.is_default, project.name) == (True, "Default")
    assert project.id == (await accounts.projects.default(tenant.id)).id
    assert project.id != (await accounts.projects.default(other.id)).id
    with pytest.raises(DefaultProjectKept):
        await accounts.projects.archive(tenant.id, project.id, OPERATOR)
    with pytest.raises(ProjectNotFound):
        await accounts.projects.default("tnt_nobody")


async def test_archiving_a_project_ends_its_keys_and_no_others(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    account = await accounts.service_accounts.create(tenant.id, project.id, "bot", OPERATOR)
    ended = [
        await accounts.keys.create(tenant.id, "a", OPERATOR, project_id=project.id),
        await accounts.keys.create(tenant.id, "b", OPERATOR, service_account_id=account.id),
    ]
    kept = await accounts.keys.create(tenant.id, "c", OPERATOR)
    for key in (*ended, kept):
        await resolver.resolve(key.plaintext)
    archived = await accounts.projects.archive(tenant.id, project.id, OPERATOR)
    assert archived.archived_at is not None
    assert await gone(resolver, *(key.plaintext for key in ended)) < 5
    assert not await refused(resolver, kept.plaintext)
    again = await accounts.projects.archive(tenant.id, project.id, OPERATOR)
    assert again.archived_at == archived.archived_at
    for key in ended:
        assert (await accounts.keys.get(tenant.id, key.id))[0].revoked_at is not None
    with pytest.raises(ServiceAccountNotFound):
        await accounts.service_accounts.get(tenant.id, project.id, account.id)
    assert [one.name for one in await accounts.projects.list(tenant.id)] == ["Default"]
    assert len(await accounts.projects.list(tenant.id, with_archived=True)) == 2
    for change in (
        accounts.projects.rename(tenant.id, project.id, "new", OPERATOR),
        accounts.service_accounts.create(tenant.id, project.id, "late", OPERATOR),
        accounts.keys.create(tenant.id, "late", OPERATOR, project_id=project.id),
    ):
        with pytest.raises(ProjectArchived):
            await change


async def test_no_key_slips_into_a_project_while_it_is_archived(
    accounts: AccountServices, tenant: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    await asyncio.gather(
        *(accounts.keys.create(tenant.id, "k", OPERATOR, project_id=project.id) for _ in range(4)),
        accounts.projects.archive(tenant.id, project.id, OPERATOR),
        *(accounts.keys.create(tenant.id, "k", OPERATOR, project_id=project.id) for _ in range(4)),
        return_exceptions=True,
    )
    assert (await accounts.projects.get(tenant.id, project.id)).archived_at is not None
    assert await accounts.keys.list(tenant.id, project_id=project.id) == []


async def test_names_of_projects_are_taken_until_they_are_archived(
    accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    await accounts.projects.create(other.id, "web", OPERATOR)
    with pytest.raises(NameTaken):
        await accounts.projects.create(tenant.id, "web", OPERATOR)
    second = await accounts.projects.create(tenant.id, "two", OPERATOR)
    with pytest.raises(NameTaken):
        await accounts.projects.rename(tenant.id, second.id, "web", OPERATOR)
    await accounts.projects.archive(tenant.id, project.id, OPERATOR)
    renamed = await accounts.projects.rename(tenant.id, second.id, " web ", OPERATOR)
    assert renamed.name == "web"
    for name in ("", " ", "x" * 101, "a\x00b"):
        with pytest.raises(ValueError, match="name"):
            await accounts.projects.create(tenant.id, name, OPERATOR)


async def test_a_service_accounts_keys_end_with_it(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    project = await accounts.projects.default(tenant.id)
    account = await accounts.service_accounts.create(tenant.id, project.id, "bot", OPERATOR)
    key = await accounts.keys.create(tenant.id, "a", OPERATOR, service_account_id=account.id)
    assert (await resolver.resolve(key.plaintext)).user_id == account.id
    changed = await accounts.service_accounts.update(
        tenant.id, project.id, account.id, OPERATOR, name="crawler", role="owner"
    )
    assert (changed.name, changed.role) == ("crawler", "owner")
    with pytest.raises(ValueError, match="role"):
        await accounts.service_accounts.update(
            tenant.id,
            project.id,
            account.id,
            OPERATOR,
            role="admin",  # type: ignore[arg-type]
        )
    await accounts.service_accounts.delete(tenant.id, project.id, account.id, OPERATOR)
    assert await gone(resolver, key.plaintext) < 5
    assert await accounts.service_accounts.list(tenant.id, project.id) == []
    with pytest.raises(ServiceAccountNotFound):
        await accounts.service_accounts.delete(tenant.id, project.id, account.id, OPERATOR)


async def test_a_tenants_projects_are_its_own(
    accounts: AccountServices, tenant: Tenant, other: Tenant, database: Database
) -> None:
    theirs = await accounts.projects.create(other.id, "secret", OPERATOR)
    bot = await accounts.service_accounts.create(other.id, theirs.id, "bot", OPERATOR)
    ours = await accounts.projects.default(tenant.id)
    assert [one.id for one in await accounts.projects.list(tenant.id)] == [ours.id]
    for refused_call in (
        accounts.projects.get(tenant.id, theirs.id),
        accounts.projects.rename(tenant.id, theirs.id, "x", OPERATOR),
        accounts.projects.archive(tenant.id, theirs.id, OPERATOR),
        accounts.service_accounts.list(tenant.id, theirs.id),
        accounts.service_accounts.create(tenant.id, theirs.id, "x", OPERATOR),
    ):
        with pytest.raises(ProjectNotFound):
            await refused_call
    for project_id in (theirs.id, ours.id):
        with pytest.raises(ServiceAccountNotFound):
            await accounts.service_accounts.get(tenant.id, project_id, bot.id)
        with pytest.raises(ServiceAccountNotFound):
            await accounts.service_accounts.delete(tenant.id, project_id, bot.id, OPERATOR)


async def test_projects_are_paged(accounts: AccountServices, tenant: Tenant) -> None:
    made = [(await accounts.projects.default(tenant.id)).id]
    made += [(await accounts.projects.create(tenant.id, name, OPERATOR)).id for name in "abc"]
    first = await accounts.projects.list(tenant.id, limit=3)
    assert [one.id for one in first] == made[:0:-1]
    rest = await accounts.projects.list(tenant.id, limit=3, after=first[-1].id)
    assert [one.id for one in rest] == made[:1]
    upwards = await accounts.projects.list(tenant.id, limit=2, after=made[1], newest_first=False)
    assert [one.id for one in upwards] == made[2:]
