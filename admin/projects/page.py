"""Gathers the project pages: the list, and one project with its members, keys and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from admin.badge import Badge
from admin.keys.page import KeyRow, row_of
from admin.limits.page import amount_words, title_of
from admin.projects.service_accounts_page import AccountList, ServiceAccountsPage
from telemetry.tasks import gather_all
from tenants.key_service import KeyService
from tenants.limits.kinds import Limit, Scope
from tenants.members.service import MemberService
from tenants.models import Project
from tenants.projects.service import ProjectService
from tenants.quotas.service import LimitService
from tenants.roles import Right

PAGE = 50
MAX_MEMBERS = 100
MAX_KEYS = 50
MAX_ACCOUNTS = 10
FIELDS = ("name", "user", "role")
ROLES = [("member", "Member"), ("owner", "Owner")]


@dataclass(frozen=True)
class ProjectRow:
    id: str
    name: str
    state: Badge
    is_default: bool
    is_archived: bool
    num_keys: int
    num_members: int
    created_at: datetime


@dataclass(frozen=True)
class ProjectList:
    rows: list[ProjectRow]
    next_after: str | None


@dataclass(frozen=True)
class MemberRow:
    id: str
    email: str
    name: str
    role: str


@dataclass(frozen=True)
class LimitRow:
    title: str
    model: str
    amount: str


@dataclass(frozen=True)
class ProjectView:
    id: str
    name: str
    state: Badge
    is_default: bool
    is_archived: bool
    created_at: datetime
    models: list[str]
    models_denied: bool
    members: list[MemberRow] | None
    """None: the user may not view them; likewise below."""
    others: list[tuple[str, str]]
    """(id, email) of members of the organization who are not in the project."""
    keys: list[KeyRow] | None
    has_more_keys: bool
    accounts: AccountList
    """The newest."""
    limits: list[LimitRow] | None


class ProjectsPage:
    """Gathers the pages."""

    def __init__(
        self,
        projects: ProjectService,
        members: MemberService,
        keys: KeyService,
        limits: LimitService,
        accounts: ServiceAccountsPage,
    ) -> None:
        self._projects = projects
        self._members = members
        self._keys = keys
        self._limits = limits
        self._accounts = accounts

    async def index(self, tenant_id: str, after: str | None, *, with_archived: bool) -> ProjectList:
        """Raises DatabaseUnavailable."""
        found = await self._projects.list(
            tenant_id, with_archived=with_archived, after=after, limit=PAGE + 1, newest_first=False
        )
        counts = await self._projects.counts(tenant_id, [one.id for one in found[:PAGE]])
        rows = [
            ProjectRow(
                id=one.id,
                name=one.name,
                state=_state(one),
                is_default=one.is_default,
                is_archived=one.archived_at is not None,
                num_keys=counts[one.id].keys,
                num_members=counts[one.id].members,
                created_at=one.created_at,
            )
            for one in found[:PAGE]
        ]
        return ProjectList(rows, rows[-1].id if len(found) > PAGE else None)

    async def one(self, tenant_id: str, project_id: str, may: Callable[[Right], bool]) -> ProjectView:
        """Returns what `may` allows the user to view. Raises ProjectNotFound, DatabaseUnavailable."""
        project = await self._projects.get(tenant_id, project_id)
        (members, others), (keys, has_more), accounts, limits = await gather_all(
            self._people(tenant_id, project_id, may),
            self._its_keys(tenant_id, project, may),
            self._accounts.index(tenant_id, project_id, limit=MAX_ACCOUNTS),
            self._its_limits(tenant_id, project_id, may),
        )
        return ProjectView(
            id=project.id,
            name=project.name,
            state=_state(project),
            is_default=project.is_default,
            is_archived=project.archived_at is not None,
            created_at=project.created_at,
            models=[*project.models],
            models_denied=project.models_denied,
            members=members,
            others=others,
            keys=keys,
            has_more_keys=has_more,
            accounts=accounts,
            limits=limits,
        )

    async def _people(
        self, tenant_id: str, project_id: str, may: Callable[[Right], bool]
    ) -> tuple[list[MemberRow] | None, list[tuple[str, str]]]:
        if not may("members.read"):
            return None, []
        found = await self._members.project_members(
            tenant_id, project_id, limit=MAX_MEMBERS, newest_first=False
        )
        rows = [MemberRow(user.id, user.email, user.name, place.role) for place, user in found]
        if not may("members.write"):
            return rows, []
        inside = {row.id for row in rows}
        everybody = await self._members.list(tenant_id, limit=MAX_MEMBERS, newest_first=False)
        return rows, [(user.id, user.email) for user in everybody if user.id not in inside]

    async def _its_keys(
        self, tenant_id: str, project: Project, may: Callable[[Right], bool]
    ) -> tuple[list[KeyRow] | None, bool]:
        if not may("keys.read"):
            return None, False
        found = await self._keys.list(tenant_id, project_id=project.id, limit=MAX_KEYS + 1)
        rows = [row_of(key, {project.id: project.name}) for key in found[:MAX_KEYS]]
        return rows, len(found) > MAX_KEYS

    async def _its_limits(
        self, tenant_id: str, project_id: str, may: Callable[[Right], bool]
    ) -> list[LimitRow] | None:
        if not may("limits.read"):
            return None
        return limit_rows(await self._limits.list(tenant_id), "project", project_id)


def limit_rows(limits: list[Limit], scope: Scope, scope_id: str) -> list[LimitRow]:
    """Those of one project or key."""
    return [
        LimitRow(title_of(one.metric), one.model, amount_words(one.metric, one.amount))
        for one in limits
        if (one.scope, one.scope_id) == (scope, scope_id)
    ]


def _state(project: Project) -> Badge:
    return Badge("Archived", "off") if project.archived_at is not None else Badge("Active", "good")
