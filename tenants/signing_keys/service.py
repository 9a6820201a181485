"""Registers and removes an organization's public keys, and sets whether it accepts only signed adapters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from db.base import new_id
from db.session import Database
from engine.signing.keys import MAX_PEM, VerifyingKey
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound
from tenants.identities.repository import IdentityRepository
from tenants.repository import TenantDirectory
from tenants.signing_keys.errors import SigningKeyKnown, SigningKeyNotFound, TooManySigningKeys
from tenants.signing_keys.models import TenantSigningKey
from tenants.signing_keys.repository import SigningKeyRepository
from tenants.validation import checked_name

MAX_KEYS = 20


class SigningKeys:
    """The public keys of all organizations. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, tenant_id: str) -> Sequence[TenantSigningKey]:
        """Returns the keys that are not removed, newest first."""
        async with self._database.read(tenant_id) as session:
            return await SigningKeyRepository(session, tenant_id).list()

    async def add(self, tenant_id: str, name: str, pem: str, actor: Actor) -> TenantSigningKey:
        """Registers a public key. Raises TooManySigningKeys, SigningKeyKnown, TenantNotFound, ValueError
        naming the field.
        """
        name = checked_name("name", name)
        if len(pem) > MAX_PEM:
            raise ValueError(f"public_key: {len(pem)} characters, a key in PEM has at most {MAX_PEM}")
        try:
            key = VerifyingKey.from_pem(pem)
        except ValueError as error:
            raise ValueError(f"public_key: {error}") from error
        row = TenantSigningKey(
            id=new_id("signkey"),
            tenant_id=tenant_id,
            name=name,
            key_id=key.id,
            pem=key.pem,
            created_by=actor.id,
            created_at=datetime.now(UTC),
        )
        async with self._database.write(tenant_id) as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            keys = SigningKeyRepository(session, tenant_id)
            await keys.advisory_lock("signing keys")
            known = await keys.list()
            for other in known:
                if other.key_id == key.id:
                    raise SigningKeyKnown(other.name)
            if len(known) >= MAX_KEYS:
                raise TooManySigningKeys(MAX_KEYS)
            keys.add_own(row)
            details = {"name": name, "key_id": key.id}
            await AuditLog.record(
                session, tenant_id, actor, "signing_key.created", ("signing_key", row.id), details
            )
        return row

    async def remove(self, tenant_id: str, key_id: str, actor: Actor) -> None:
        """Removes a key: uploads signed with it are not accepted any more. Versions that were stay. Raises
        SigningKeyNotFound.
        """
        async with self._database.write(tenant_id) as session:
            row = await SigningKeyRepository(session, tenant_id).lock(key_id)
            if row is None:
                raise SigningKeyNotFound(key_id)
            row.revoked_at = datetime.now(UTC)
            details = {"name": row.name, "key_id": row.key_id}
            await AuditLog.record(
                session, tenant_id, actor, "signing_key.deleted", ("signing_key", row.id), details
            )

    async def accepts_signed_only(self, tenant_id: str) -> bool:
        """Returns whether uploads must be signed. Raises TenantNotFound."""
        async with self._database.read(tenant_id) as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
        if tenant is None:
            raise TenantNotFound(tenant_id)
        return bool(tenant.signed_adapters_only)

    async def accept_signed_only(self, tenant_id: str, signed_only: bool, actor: Actor) -> None:
        """Sets whether uploads must be signed by one of the keys, from the next upload on. Raises
        TenantNotFound.
        """
        async with self._database.write(tenant_id) as session:
            tenant = await IdentityRepository(session, tenant_id).lock_tenant()
            if tenant is None:
                raise TenantNotFound(tenant_id)
            if tenant.signed_adapters_only == signed_only:
                return
            tenant.signed_adapters_only = signed_only
            details = {"signed_adapters_only": signed_only}
            await AuditLog.record(
                session, tenant_id, actor, "organization.updated", ("organization", tenant_id), details
            )
