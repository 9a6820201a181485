"""Builds the caller of work that goes on after its request, for an API key or for a signed-in user.

A batch that was created in the console has the user's id in place of a key's.
"""

from __future__ import annotations

from db.session import Database
from tenants.context import TenantContext
from tenants.key_contexts import KeyContexts
from tenants.roles import Right
from tenants.user_contexts import UserContexts

USER_PREFIX = "usr_"
RUN_REQUESTS: Right = "adapters.write"
"""The right of users who can send requests to models."""


class CallerContexts:
    """Looks up callers by the id of a key or of a user, for all tenants."""

    def __init__(self, database: Database) -> None:
        self._keys = KeyContexts(database)
        self._users = UserContexts(database)

    async def of(self, tenant_id: str, created_by: str) -> TenantContext:
        """Returns the caller. Raises InvalidApiKey if the key would be refused now, UserNotFound if the user
        may not run requests any more; DatabaseUnavailable.
        """
        if created_by.startswith(USER_PREFIX):
            return await self._users.of(tenant_id, created_by, RUN_REQUESTS)
        return await self._keys.of(tenant_id, created_by)
