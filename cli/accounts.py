"""Manages tenants, projects, API keys, users and the audit log for the operator's commands.

Each command makes one call to the services.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CliError, UsageError
from cli.service_access import Services, call, minute

if TYPE_CHECKING:
    from tenants.context import KeyKind
    from tenants.models import ApiKey, Project, Tenant
    from tenants.roles import Role

EVERYTHING = 100_000
"""Rows of a list that the command line prints in one page."""


def create_tenant(data: Path | None, name: str) -> str:
    async def work(services: Services) -> str:
        return (await services.accounts.tenants.create_tenant(name)).id

    return call(data, work)


def list_tenants(data: Path | None) -> list[tuple[str, ...]]:
    async def work(services: Services) -> list[tuple[str, ...]]:
        return [
            (
                *(tenant.name, tenant.id, minute(tenant.created_at)),
                "disabled" if tenant.disabled_at else "active",
            )
            for tenant in await services.accounts.tenants.list_tenants()
        ]

    return call(data, work)


def set_tenant_disabled(data: Path | None, tenant: str, disabled: bool) -> None:
    async def work(services: Services) -> None:
        owner = await _tenant(services, tenant)
        await services.accounts.tenants.set_tenant_disabled(owner.id, disabled)

    call(data, work)


def delete_tenant(data: Path | None, tenant: str) -> tuple[str, str]:
    """Begins the deletion of a tenant; returns the ids of tenant and deletion."""
    from retention.organizations import OrganizationDeletion

    async def work(services: Services) -> tuple[str, str]:
        owner = await _tenant(services, tenant)
        deletion = OrganizationDeletion(services.database, services.redis)
        return owner.id, await deletion.begin(owner.id)

    return call(data, work)


# Projects -------------------------------------------------------------------------------------------------


def create_project(data: Path | None, tenant: str, name: str) -> str:
    async def work(services: Services) -> str:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        return (await services.accounts.projects.create(owner.id, name, OPERATOR)).id

    return call(data, work)


def list_projects(data: Path | None, tenant: str) -> list[tuple[str, ...]]:
    async def work(services: Services) -> list[tuple[str, ...]]:
        return [
            (
                *(project.name, project.id, minute(project.created_at)),
                "archived" if project.archived_at else "default" if project.is_default else "active",
            )
            for project in await _projects(services, await _tenant(services, tenant))
        ]

    return call(data, work)


def archive_project(data: Path | None, tenant: str, project: str) -> None:
    async def work(services: Services) -> None:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        found = await _project(services, owner, project)
        await services.accounts.projects.archive(owner.id, found.id, OPERATOR)

    call(data, work)


# Keys -----------------------------------------------------------------------------------------------------


def create_key(
    data: Path | None,
    tenant: str,
    kind: KeyKind,
    name: str,
    *,
    project: str | None = None,
    scopes: Sequence[str] = (),
    models: Sequence[str] = (),
    networks: Sequence[str] = (),
    origins: Sequence[str] = (),
    days: float | None = None,
) -> str:
    """Returns the key's plain text, which cannot be shown again."""

    async def work(services: Services) -> str:
        from tenants.actors import OPERATOR
        from tenants.key_restrictions import KeyRestrictions

        owner = await _tenant(services, tenant)
        expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
        created = await services.accounts.keys.create(
            owner.id,
            name,
            OPERATOR,
            kind=kind,
            project_id=None if project is None else (await _project(services, owner, project)).id,
            restrictions=KeyRestrictions(
                frozenset(scopes), frozenset(models), tuple(networks), expires_at, tuple(origins)
            ),
        )
        return created.plaintext

    return call(data, work)


def rotate_key(data: Path | None, tenant: str, key_id: str, grace_hours: float) -> str:
    """Returns the new key's plain text, which cannot be shown again."""

    async def work(services: Services) -> str:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        grace = timedelta(hours=grace_hours)
        return (await services.accounts.keys.rotate(owner.id, key_id, OPERATOR, grace=grace)).plaintext

    return call(data, work)


def revoke_key(data: Path | None, tenant: str, key_id: str) -> None:
    async def work(services: Services) -> None:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        await services.accounts.keys.revoke(owner.id, key_id, OPERATOR)

    call(data, work)


def list_keys(data: Path | None, tenant: str) -> list[tuple[str, ...]]:
    async def work(services: Services) -> list[tuple[str, ...]]:
        owner = await _tenant(services, tenant)
        names = {project.id: project.name for project in await _projects(services, owner)}
        shown = await services.accounts.keys.list(
            owner.id, with_revoked=True, limit=EVERYTHING, newest_first=False
        )
        return [
            (
                *(key.id, key.name, key.kind, names.get(key.project_id or "", "-"), f"{key.prefix}..."),
                *(minute(key.created_at), minute(key.last_used_at), minute(key.expires_at)),
                _state(key),
            )
            for key, _, _ in shown
        ]

    return call(data, work)


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "rotated" if key.replaced_by is not None else "active"


# Users ----------------------------------------------------------------------------------------------------


def create_user(data: Path | None, tenant: str, email: str, password: str, role: Role) -> None:
    async def work(services: Services) -> None:
        owner = await _tenant(services, tenant)
        await services.accounts.users.create(owner.id, email, password, role=role)

    call(data, work)


def list_users(data: Path | None, tenant: str) -> list[tuple[str, ...]]:
    async def work(services: Services) -> list[tuple[str, ...]]:
        owner = await _tenant(services, tenant)
        users = await services.accounts.members.list(owner.id, limit=EVERYTHING, newest_first=False)
        return [(user.email, user.id, user.role, minute(user.created_at)) for user in users]

    return call(data, work)


def set_user_role(data: Path | None, tenant: str, email: str, role: Role) -> None:
    async def work(services: Services) -> None:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        user_id = await _user(services, owner, email)
        await services.accounts.members.update(owner.id, user_id, OPERATOR, role=role)

    call(data, work)


def reset_user(data: Path | None, tenant: str, email: str, *, second_factor: bool) -> str:
    """Returns a token to set a new password, which cannot be shown again."""

    async def work(services: Services) -> str:
        owner = await _tenant(services, tenant)
        user_id = await _user(services, owner, email)
        return await reset_token(services, owner.id, user_id, second_factor)

    return call(data, work)


async def reset_token(services: Services, tenant_id: str, user_id: str, second_factor: bool) -> str:
    """Returns a token to set a new password. `second_factor`: also removes the second factor, if any."""
    from tenants.actors import OPERATOR
    from tenants.errors import NoSecondFactor

    if second_factor:
        with suppress(NoSecondFactor):
            await services.accounts.second_factors.remove_for_member(tenant_id, user_id, OPERATOR)
    return (await services.accounts.credentials.create_reset(tenant_id, user_id, OPERATOR)).token


def remove_user(data: Path | None, tenant: str, email: str) -> None:
    async def work(services: Services) -> None:
        from tenants.actors import OPERATOR

        owner = await _tenant(services, tenant)
        user_id = await _user(services, owner, email)
        await services.accounts.members.remove(owner.id, user_id, OPERATOR)

    call(data, work)


# The audit log --------------------------------------------------------------------------------------------


def list_audit(data: Path | None, tenant: str | None, limit: int) -> list[tuple[str, ...]]:
    """Returns the newest entries of a tenant's log, or of the operator's log; newest first."""

    async def work(services: Services) -> list[tuple[str, ...]]:
        entries = await services.accounts.audit.list(await _chain(services, tenant), limit=limit)
        return [
            (
                *(str(entry.seq), entry.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"), entry.type),
                *(_who(entry.actor), f"{entry.target_kind} {entry.target_id}"),
            )
            for entry in entries
        ]

    return call(data, work)


def verify_audit(data: Path | None, tenant: str | None) -> int:
    """Recomputes the hash chains of one tenant or of all; returns how many are intact. Raises CliError naming
    those that are not.
    """

    async def work(services: Services) -> int:
        audit = services.accounts.audit
        chains = await audit.chains() if tenant is None else [await _chain(services, tenant)]
        broken = [(chain, seq) for chain in chains if (seq := await audit.verify(chain)) is not None]
        if broken:
            named = ", ".join(f"{chain} from entry {seq}" for chain, seq in broken)
            raise CliError(f"the audit log was tampered with: {named}")
        return len(chains)

    return call(data, work)


def _who(actor: dict[str, Any]) -> str:
    name = actor.get("email") or actor["id"]
    kind = actor["type"]
    return name if kind == name else f"{kind} {name}"


async def _chain(services: Services, tenant: str | None) -> str:
    from tenants.audit.service import OPERATOR_CHAIN

    return OPERATOR_CHAIN if tenant is None else (await _tenant(services, tenant)).id


# Looking up names -----------------------------------------------------------------------------------------


async def _tenant(services: Services, tenant: str) -> Tenant:
    return await services.accounts.tenants.find_tenant(tenant)


async def _projects(services: Services, tenant: Tenant) -> list[Project]:
    return await services.accounts.projects.list(
        tenant.id, with_archived=True, limit=EVERYTHING, newest_first=False
    )


async def _project(services: Services, tenant: Tenant, project: str) -> Project:
    """Finds a project by id, or by name among those that are not archived. Raises UsageError."""
    for found in await _projects(services, tenant):
        if found.id == project or (found.name == project and found.archived_at is None):
            return found
    raise UsageError(f"{tenant.name} has no project {project!r}")


async def _user(services: Services, tenant: Tenant, email: str) -> str:
    found = await services.accounts.members.list(tenant.id, emails=[email])
    if not found:
        raise UsageError(f"{tenant.name} has no user {email!r}")
    return found[0].id
