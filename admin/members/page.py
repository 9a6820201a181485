"""Gathers the members page, and parses the form of an invitation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from admin.badge import Badge
from telemetry.tasks import gather_all
from tenants.identities.second_factors import SecondFactors
from tenants.members.invites import InviteService
from tenants.members.service import MemberService
from tenants.models import Invite
from tenants.projects.service import ProjectService
from tenants.roles import ProjectRole, Role

PAGE = 50
MAX_INVITES = 50
MAX_PROJECTS = 30
FIELDS = ("email", "role", "projects")
PROJECT_FIELD = "project:"
"""Before the project's id, in the name of its box."""
ROLE_WORDS: Mapping[Role, str] = {
    "owner": "Full access, including owners and payment methods",
    "admin": "Manages members, keys, projects, limits and adapters",
    "developer": "Manages adapters and uses the playground; views keys, limits and members",
    "billing": "Manages billing and payments; views members and limits",
    "viewer": "Read-only access to adapters, keys, limits and members",
}
ROLE_CHOICES = [(role, role.capitalize()) for role in ROLE_WORDS]


@dataclass(frozen=True)
class MemberRow:
    id: str
    email: str
    name: str
    role: str
    projects: list[str]
    since: datetime
    is_disabled: bool
    has_second_factor: bool


@dataclass(frozen=True)
class InviteRow:
    id: str
    email: str
    role: str
    state: Badge
    expires_at: datetime


@dataclass(frozen=True)
class Members:
    rows: list[MemberRow]
    next_after: str | None
    invites: list[InviteRow]


class MembersPage:
    """Gathers the page."""

    def __init__(
        self,
        members: MemberService,
        invites: InviteService,
        projects: ProjectService,
        factors: SecondFactors,
    ) -> None:
        self._members = members
        self._factors = factors
        self._invites = invites
        self._projects = projects

    async def gather(self, tenant_id: str, after: str | None) -> Members:
        """Raises DatabaseUnavailable."""
        users, invites = await gather_all(
            self._members.list(tenant_id, after=after, limit=PAGE + 1, newest_first=False),
            self._invites.list(tenant_id, limit=MAX_INVITES),
        )
        places: dict[str, list[str]] = defaultdict(list)
        for place, project in await self._members.memberships(tenant_id, [user.id for user in users]):
            places[place.user_id].append(project.name)
        with_factor = await self._factors.users_with_factor(tenant_id, [user.id for user in users])
        rows = [
            MemberRow(
                id=user.id,
                email=user.email,
                name=user.name,
                role=user.role,
                projects=places[user.id],
                since=user.created_at,
                is_disabled=user.disabled_at is not None,
                has_second_factor=user.id in with_factor,
            )
            for user in users[:PAGE]
        ]
        now = datetime.now(UTC)
        open_ones = [_invite(invite, now) for invite in invites if invite.accepted_at is None]
        return Members(rows, rows[-1].id if len(users) > PAGE else None, open_ones)

    async def projects(self, tenant_id: str) -> list[tuple[str, str, bool]]:
        """(id, name, whether it is the default one) of those that an invitation can be to."""
        found = await self._projects.list(tenant_id, limit=MAX_PROJECTS, newest_first=False)
        return [(project.id, project.name, project.is_default) for project in found]


def read_places(form: Mapping[str, str]) -> dict[str, ProjectRole]:
    """The projects that were ticked."""
    return {name.removeprefix(PROJECT_FIELD): "member" for name in form if name.startswith(PROJECT_FIELD)}


def _invite(invite: Invite, now: datetime) -> InviteRow:
    expired = invite.expires_at <= now
    state = Badge("Expired", "off") if expired else Badge("Pending", "good")
    return InviteRow(invite.id, invite.email, invite.role, state, invite.expires_at)
