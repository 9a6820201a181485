"""Sets whether an organization's responses and conversations may be stored at all."""

from __future__ import annotations

import redis.asyncio

from db.session import Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound
from tenants.identities.repository import IdentityRepository
from tenants.repository import KeyRepository, TenantDirectory
from tenants.resolver import publish_key_changes
from tenants.retention.classes import DataClass
from tenants.retention.holds import require_no_hold


class DataRetention:
    """The setting of all organizations, one per call. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def stores_nothing(self, tenant_id: str) -> bool:
        """Returns whether nothing may be stored. Raises TenantNotFound."""
        async with self._database.read(tenant_id) as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
        if tenant is None:
            raise TenantNotFound(tenant_id)
        return bool(tenant.stores_nothing)

    async def set(self, tenant_id: str, stores_nothing: bool, actor: Actor) -> None:
        """Changes the setting, within a second for every key. What is stored already is deleted by the
        workers. Raises TenantNotFound; OnLegalHold while a hold keeps what is stored.
        """
        async with self._database.write(tenant_id) as session:
            tenant = await IdentityRepository(session, tenant_id).lock_tenant()
            if tenant is None:
                raise TenantNotFound(tenant_id)
            if tenant.stores_nothing == stores_nothing:
                return
            if stores_nothing:
                await require_no_hold(session, tenant_id, "what is stored", DataClass.RESPONSES)
                await require_no_hold(session, tenant_id, "metadata of requests", DataClass.REQUESTS)
            tenant.stores_nothing = stores_nothing
            digests = await KeyRepository(session, tenant_id).digests()
            session.after_commit(lambda: publish_key_changes(self._redis, digests))
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "organization.updated",
                ("organization", tenant_id),
                {"stores_nothing": stores_nothing},
            )
