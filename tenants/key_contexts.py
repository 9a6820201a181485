"""Builds the caller of work that goes on after its request, from the id of the API key that asked for it.

Nothing is cached: processes that do such work look again every few seconds, so that a revoked key stops.
"""

from __future__ import annotations

from datetime import UTC, datetime

from db.session import Database
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tenants.repository import TenantDirectory
from tenants.resolver import context_of, is_key_valid


class KeyContexts:
    """Looks up callers by the ids of their keys, for all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, key_id: str) -> TenantContext:
        """Returns the caller with this key. Raises InvalidApiKey if the key would be refused now;
        DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            found = await TenantDirectory(session).key_by_id(tenant_id, key_id)
        if found is None:
            raise InvalidApiKey
        key, tenant, plan, project, limits = found
        now = datetime.now(UTC)
        if not is_key_valid(key, tenant, project, now):
            raise InvalidApiKey
        return context_of(key, tenant, plan, project, limits)
