"""Gathers the service account pages: those of a project, and one with its keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from admin.keys.page import KeyRow, row_of
from tenants.key_service import KeyService
from tenants.models import Project, ServiceAccount
from tenants.projects.service import ProjectService
from tenants.projects.service_accounts import ServiceAccountService

PAGE = 50
MAX_KEYS = 100
FIELDS = ("name", "key_name", "expires_at")
FIRST_KEY = "Secret key"


@dataclass(frozen=True)
class AccountRow:
    id: str
    name: str
    num_keys: int
    last_used_at: datetime | None
    """Of any key that it still has."""
    created_at: datetime


@dataclass(frozen=True)
class AccountList:
    rows: list[AccountRow]
    next_after: str | None


@dataclass(frozen=True)
class AccountView:
    project: Project
    account: ServiceAccount
    keys: list[KeyRow] | None
    """None: the user may not view them."""


class ServiceAccountsPage:
    """Gathers the pages."""

    def __init__(self, projects: ProjectService, accounts: ServiceAccountService, keys: KeyService) -> None:
        self._projects = projects
        self._accounts = accounts
        self._keys = keys

    async def project(self, tenant_id: str, project_id: str) -> Project:
        """Raises ProjectNotFound, DatabaseUnavailable."""
        return await self._projects.get(tenant_id, project_id)

    async def index(
        self, tenant_id: str, project_id: str, after: str | None = None, *, limit: int = PAGE
    ) -> AccountList:
        """Raises ProjectNotFound, DatabaseUnavailable."""
        found = await self._accounts.with_uses(tenant_id, project_id, after=after, limit=limit + 1)
        rows = [
            AccountRow(one.id, one.name, use.num_keys, use.last_used_at, one.created_at)
            for one, use in found[:limit]
        ]
        return AccountList(rows, rows[-1].id if len(found) > limit else None)

    async def one(self, tenant_id: str, project_id: str, account_id: str, *, with_keys: bool) -> AccountView:
        """Raises ProjectNotFound, ServiceAccountNotFound, DatabaseUnavailable."""
        project = await self.project(tenant_id, project_id)
        account = await self._accounts.get(tenant_id, project_id, account_id)
        if not with_keys:
            return AccountView(project, account, None)
        found = await self._keys.list(tenant_id, service_account_id=account_id, limit=MAX_KEYS)
        return AccountView(project, account, [row_of(key, {project.id: project.name}) for key in found])
