"""Builds the caller of work that goes on after its request, from the id of the API key that asked for it.

Nothing is cached: a key that was revoked meanwhile is refused.
"""

from __future__ import annotations

from datetime import UTC, datetime

from db.session import EVERY_TENANT, Database
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tenants.models import ApiKey
from tenants.repository import KeyRepository, TenantDirectory
from tenants.resolver import context_of, is_key_valid


class KeyContexts:
    """Looks up callers by the ids of their keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, key_id: str) -> TenantContext:
        """Returns the caller with this key, as the key and its limits are now.

        Raises InvalidApiKey if the key is revoked or has expired; DatabaseUnavailable.
        """
        async with self._database.read(EVERY_TENANT) as session:
            digests = await KeyRepository(session, tenant_id).digests(ApiKey.id == key_id)
            rows = await TenantDirectory(session).keys_by_digest(digests)
        now = datetime.now(UTC)
        for key, tenant, plan, project, limits in rows:
            has_expired = key.expires_at is not None and key.expires_at <= now
            if is_key_valid(key, tenant, project, now) and not has_expired:
                return context_of(key, tenant, plan, project, limits)
        raise InvalidApiKey
