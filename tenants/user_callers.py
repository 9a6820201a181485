"""Who is asking, where it is a person who signed in and no key: the same view of them as of a key's holder.

Owns which project their requests count to: the default one. Holds nothing between requests: people ask
seldom, and what changed of them counts at once.
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
from tenants.resolver import context_of, is_let_in


class UserCallers:
    """Of every tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, user_id: str) -> TenantContext:
        """As of a key for inference that is this user's, of the default project, without restrictions. In
        usage and limits the user's id stands where a key's would.

        Raises UserNotFound, also for one who would not be let in with a key; DatabaseUnavailable.
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
        if user is None or user.disabled_at is not None or not is_let_in(stands_for, tenant, project, now):
            raise UserNotFound(user_id)
        return context_of(stands_for, tenant, plan, project, limits)
