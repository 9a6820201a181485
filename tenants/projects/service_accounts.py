"""Manages service accounts of projects: creates, changes and deletes them.

Every method is one transaction. Resolver caches are invalidated after the commit, within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio

from db.base import new_id
from db.session import Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import ProjectNotFound, ServiceAccountNotFound
from tenants.models import ApiKey, ServiceAccount
from tenants.projects.repository import ProjectRepository
from tenants.projects.service import live_project
from tenants.resolver import revoke_keys
from tenants.roles import ProjectRole, checked_project_role
from tenants.validation import checked_name


@dataclass(frozen=True, slots=True)
class AccountUse:
    """Use of a service account's keys."""

    num_keys: int = 0
    """Keys that are not revoked."""
    last_used_at: datetime | None = None
    """When one of these keys was last used."""


class ServiceAccountService:
    """Service accounts of all tenants. To create their keys: `KeyService.create(...,
    service_account_id=...)`.
    """

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(
        self,
        tenant_id: str,
        project_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[ServiceAccount]:
        """Returns accounts after the one with the id `after`. Raises ProjectNotFound."""
        async with self._database.read(tenant_id) as session:
            projects = ProjectRepository(session, tenant_id)
            page = await _page(projects, project_id, after, limit, newest_first=newest_first)
        return [*page]

    async def with_uses(
        self, tenant_id: str, project_id: str, *, after: str | None = None, limit: int = 20
    ) -> Sequence[tuple[ServiceAccount, AccountUse]]:
        """Returns accounts with their use, newest first, after the one with the id `after`. Raises
        ProjectNotFound.
        """
        async with self._database.read(tenant_id) as session:
            projects = ProjectRepository(session, tenant_id)
            page = await _page(projects, project_id, after, limit, newest_first=True)
            rows = await projects.account_uses([one.id for one in page]) if page else []
        uses = {account_id: AccountUse(count, used) for account_id, count, used in rows}
        return [(one, uses.get(one.id, AccountUse())) for one in page]

    async def of_every_project(self, tenant_id: str, *, limit: int) -> Sequence[tuple[str, ServiceAccount]]:
        """Returns accounts of projects that are not archived, each after the project's name."""
        async with self._database.read(tenant_id) as session:
            return await ProjectRepository(session, tenant_id).named_accounts(limit)

    async def get(self, tenant_id: str, project_id: str, account_id: str) -> ServiceAccount:
        """Returns an account. Raises ServiceAccountNotFound if the project or the account does not exist."""
        async with self._database.read(tenant_id) as session:
            found = await ProjectRepository(session, tenant_id).account(project_id, account_id)
        if found is None:
            raise ServiceAccountNotFound(account_id)
        return found

    async def create(
        self, tenant_id: str, project_id: str, name: str, actor: Actor, *, role: ProjectRole = "member"
    ) -> ServiceAccount:
        """Creates a service account. Raises ProjectNotFound, ProjectArchived, ValueError."""
        account = ServiceAccount(
            id=new_id("svc_acct"),
            tenant_id=tenant_id,
            project_id=project_id,
            name=checked_name("name", name),
            role=checked_project_role(role),
            created_at=datetime.now(UTC),
        )
        async with self._database.write(tenant_id) as session:
            await live_project(session, tenant_id, project_id)
            ProjectRepository(session, tenant_id).add_own(account)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "service_account.created",
                ("service_account", account.id),
                {"name": account.name, "role": role},
                project_id=project_id,
            )
        return account

    async def update(
        self,
        tenant_id: str,
        project_id: str,
        account_id: str,
        actor: Actor,
        *,
        name: str | None = None,
        role: ProjectRole | None = None,
    ) -> ServiceAccount:
        """Changes a service account. Raises ServiceAccountNotFound, ValueError."""
        changes = {
            "name": None if name is None else checked_name("name", name),
            "role": None if role is None else checked_project_role(role),
        }
        changed = {field: value for field, value in changes.items() if value is not None}
        async with self._database.write(tenant_id) as session:
            account = await ProjectRepository(session, tenant_id).lock_account(project_id, account_id)
            if account is None:
                raise ServiceAccountNotFound(account_id)
            for field, value in changed.items():
                setattr(account, field, value)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "service_account.updated",
                ("service_account", account_id),
                changed,
                project_id=project_id,
            )
        return account

    async def delete(self, tenant_id: str, project_id: str, account_id: str, actor: Actor) -> None:
        """Deletes an account and revokes its keys, in every process within a second. Raises
        ServiceAccountNotFound.
        """
        async with self._database.write(tenant_id) as session:
            account = await ProjectRepository(session, tenant_id).lock_account(project_id, account_id)
            if account is None:
                raise ServiceAccountNotFound(account_id)
            account.deleted_at = datetime.now(UTC)
            its = ApiKey.service_account_id == account_id
            revoked = await revoke_keys(session, self._redis, tenant_id, its)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "service_account.deleted",
                ("service_account", account_id),
                {"name": account.name, "revoked_keys": revoked},
                project_id=project_id,
            )


async def _page(
    projects: ProjectRepository, project_id: str, after: str | None, limit: int, *, newest_first: bool
) -> Sequence[ServiceAccount]:
    if await projects.find(project_id) is None:
        raise ProjectNotFound(project_id)
    return await projects.account_page(project_id, after=after, limit=limit, newest_first=newest_first)
