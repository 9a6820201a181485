"""Builds the caller of a request that a signed-in user makes without an API key, as in the playground.

Such requests count towards the tenant's default project. Nothing is cached: they are rare, and changes apply
at once.
"""

from __future__ import annotations

from datetime import UTC, datetime

from db.session import Database
from tenants.context import TenantContext
from tenants.errors import UserNotFound
from tenants.limits.repository import LimitRepository
from tenants.members.repository import MemberRepository
from tenants.models import ApiKey
from tenants.projects.repository import ProjectRepository
from tenants.repository import TenantDirectory
from tenants.resolver import context_of, is_key_valid
from tenants.roles import Right, checked_role, may


class UserContexts:
    """Looks up callers for users of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, user_id: str, right: Right | None = None) -> TenantContext:
        """Returns a caller as for the user's own unrestricted inference key in the default project. Usage and
        limits have the user's id in place of a key's.

        Raises UserNotFound, also if a key of the user would be refused, or if the user's role lacks `right`;
        DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            directory = TenantDirectory(session)
            tenant, plan = await directory.tenant(tenant_id), await directory.plan_of(tenant_id)
            user = await MemberRepository(session, tenant_id).find(user_id)
            project = await ProjectRepository(session, tenant_id).default()
            if tenant is None or plan is None or project is None:
                raise UserNotFound(user_id)
            limits = await LimitRepository(session, tenant_id).of_key(project.id, user_id)
        stands_for = ApiKey(
            id=user_id,
            tenant_id=tenant_id,
            kind="inference",
            project_id=project.id,
            user_id=user_id,
            scopes=[],
            models=[],
            networks=[],
            origins=[],
        )
        now = datetime.now(UTC)
        if user is None or user.disabled_at is not None or not is_key_valid(stands_for, tenant, project, now):
            raise UserNotFound(user_id)
        if right is not None and not may(checked_role(user.role), right):
            raise UserNotFound(user_id)
        return context_of(stands_for, tenant, plan, project, limits)
