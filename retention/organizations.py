"""Deletes an organization: everything but the books, the audit log and the certificate of it."""

from __future__ import annotations

import redis.asyncio

from db.session import Database
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog
from tenants.errors import TenantNotFound
from tenants.identities.repository import IdentityRepository
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes
from tenants.retention.errors import DeletionBegun, OnLegalHold, OrganizationActive
from tenants.retention.holds import holds_of
from tenants.retention.repository import DeletionRepository, HoldRepository


class OrganizationDeletion:
    """Begins deletions of organizations, for the operator; workers carry them out and certify them."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def begin(self, tenant_id: str, actor: Actor = OPERATOR) -> str:
        """Begins the deletion of a disabled organization, which cannot be stopped; returns the deletion's id.

        Raises TenantNotFound; OrganizationActive if it is not disabled; OnLegalHold if it has any hold;
        DeletionBegun.
        """
        async with self._database.write(tenant_id) as session:
            tenant = await IdentityRepository(session, tenant_id).lock_tenant()
            if tenant is None:
                raise TenantNotFound(tenant_id)
            if tenant.disabled_at is None:
                raise OrganizationActive(tenant.name)
            await HoldRepository(session, tenant_id).await_deletions()
            holds = await holds_of(session, tenant_id)
            for hold in (*holds.by_class.values(), *holds.by_object.values()):
                raise OnLegalHold(f"organization {tenant.name}", hold)
            deletions = DeletionRepository(session, tenant_id)
            if await deletions.any("organization"):
                raise DeletionBegun(tenant.name)
            target = ("organization", tenant_id)
            deletion_id = await deletions.add_request(
                target, {"type": actor.kind, "id": actor.id}, is_done=False, cause="organization"
            )
            # The name is free for others at once; the books know the organization by its id.
            tenant.name = tenant_id
            digests = await KeyRepository(session, tenant_id).digests()
            session.after_commit(lambda: publish_key_changes(self._redis, digests))
            details = {"deletion_id": deletion_id}
            await AuditLog.record(session, tenant_id, actor, "organization.deleted", target, details)
        async with self._database.write(OPERATOR_CHAIN) as session:
            await AuditLog.record(session, OPERATOR_CHAIN, actor, "organization.deleted", target, details)
        return deletion_id
