"""Manages the SAML connection of an organization. Every method is one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound
from tenants.members.changes import require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.models import OPERATOR_TENANT
from tenants.repository import TenantDirectory
from tenants.saml.certificates import certificate_view, checked_certificates
from tenants.saml.errors import SamlConnectionNotFound
from tenants.saml.idp_metadata import FIELD as METADATA
from tenants.saml.idp_metadata import read_idp_metadata
from tenants.saml.models import SamlConnection
from tenants.saml.repository import SamlRepository
from tenants.saml.service_provider import is_tenant_id
from tenants.validation import is_email, is_printable

MAX_ENTITY_ID = 1024
MAX_URL = 2000
MAX_ATTRIBUTE = 254
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REQUIRED = ("entity_id", "sso_url", "certificates")


class SamlConnections:
    """The connections of all organizations, one each. Only owners change them: a provider that signs members
    in can sign owners in.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: str) -> SamlConnection | None:
        async with self._database.read(tenant_id) as session:
            return await SamlRepository(session, tenant_id).connection()

    async def enabled(self, tenant_id: str) -> SamlConnection | None:
        """Returns the connection if members can sign in with it; None also for an organization that does not
        exist or is disabled.
        """
        if not is_tenant_id(tenant_id):
            return None
        async with self._database.read(tenant_id) as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
            found = await SamlRepository(session, tenant_id).connection()
        if tenant is None or tenant.disabled_at is not None or found is None or not found.is_enabled:
            return None
        return found

    async def of_member(self, email: str) -> SamlConnection | None:
        """Returns the connection that the member with this address can sign in with."""
        if not is_email(email):
            return None
        async with self._database.read(EVERY_TENANT) as session:
            found = await TenantDirectory(session).user_by_email(email)
        return None if found is None else await self.enabled(found[1].id)

    async def set(self, tenant_id: str, fields: Mapping[str, Any], actor: Actor) -> SamlConnection:
        """Creates the connection, or changes these columns of it. `metadata` stands for entity id, address
        and certificates. Another entity id is another provider: what the former one linked is unlinked.

        Raises TenantNotFound, OwnersOnly, RightsNotHeld, ValueError naming the field.
        """
        columns = _checked(fields)
        if tenant_id == OPERATOR_TENANT:
            raise TenantNotFound(tenant_id)
        async with self._database.write(tenant_id) as session:
            await self._require_owner(session, tenant_id, actor)
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            repository = SamlRepository(session, tenant_id)
            await repository.advisory_lock("saml")
            row = await repository.connection(lock=True)
            now = datetime.now(UTC)
            if row is None:
                _require_all(columns)
                row = SamlConnection(
                    id=new_id("saml"), tenant_id=tenant_id, created_at=now, updated_at=now, **columns
                )
                repository.add_own(row)
                await session.flush()
                await session.refresh(row)
                await _record(session, row, actor, "created", _described(columns))
                return row
            changed = {name: value for name, value in columns.items() if getattr(row, name) != value}
            if not changed:
                return row
            details = _described(changed)
            if "entity_id" in changed:
                details["unlinked_identities"] = await repository.unlink_all(row.issuer)
            for name, value in changed.items():
                setattr(row, name, value)
            row.updated_at = now
            await session.flush()
            await _record(session, row, actor, "updated", details)
        return row

    async def delete(self, tenant_id: str, actor: Actor) -> str:
        """Deletes the connection, and unlinks the identities that it linked; open sessions go on. Returns its
        id. Raises SamlConnectionNotFound, OwnersOnly, RightsNotHeld.
        """
        async with self._database.write(tenant_id) as session:
            await self._require_owner(session, tenant_id, actor)
            repository = SamlRepository(session, tenant_id)
            row = await repository.connection(lock=True)
            if row is None:
                raise SamlConnectionNotFound
            unlinked = await repository.unlink_all(row.issuer)
            await repository.delete_connection()
            details = {"entity_id": row.entity_id, "unlinked_identities": unlinked}
            await _record(session, row, actor, "deleted", details)
            return row.id

    async def _require_owner(self, session: WriteSession, tenant_id: str, actor: Actor) -> None:
        await require_may_appoint(MemberRepository(session, tenant_id), actor, "owner")


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns. Raises ValueError naming the field."""
    found = dict(fields)
    document = found.pop(METADATA, None)
    if document is not None:
        read = read_idp_metadata(document)
        found |= {
            "entity_id": read.entity_id,
            "sso_url": read.sso_url,
            "certificates": read.certificates,
        }
    if "entity_id" in found:
        found["entity_id"] = _checked_text("entity_id", found["entity_id"], MAX_ENTITY_ID)
    if "sso_url" in found:
        found["sso_url"] = checked_sso_url(found["sso_url"])
    if "certificates" in found:
        found["certificates"] = checked_certificates(found["certificates"])
    for name in ("email_attribute", "groups_attribute"):
        if found.get(name) is not None:
            found[name] = _checked_text(name, found[name], MAX_ATTRIBUTE)
    return found


def checked_sso_url(url: str) -> str:
    """Returns an address that browsers are sent to: HTTPS, or HTTP on this machine. Raises ValueError."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    is_safe = bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK))
    is_plain = is_safe and not parts.fragment and parts.username is None
    if not is_plain or any(one.isspace() for one in url) or len(url) > MAX_URL or not is_printable(url):
        raise ValueError(
            f"sso_url must be an https:// address of at most {MAX_URL} characters, without a fragment"
        )
    return url


def _checked_text(name: str, text: str, longest: int) -> str:
    text = text.strip()
    if not text or len(text) > longest or not is_printable(text):
        raise ValueError(f"{name} must have 1 to {longest} printable characters")
    return text


def _require_all(columns: Mapping[str, Any]) -> None:
    for name in _REQUIRED:
        if name not in columns:
            raise ValueError(
                f"{name} must be given to configure SAML: send {', '.join(_REQUIRED)}, or {METADATA}"
            )


def _described(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that the audit log records: of certificates their fingerprints."""
    found = dict(columns)
    if "certificates" in found:
        found["certificates"] = [certificate_view(one).fingerprint for one in found["certificates"]]
    return found


async def _record(
    session: WriteSession, row: SamlConnection, actor: Actor, what: str, details: Mapping[str, Any]
) -> None:
    target = ("saml_connection", row.id)
    await AuditLog.record(session, row.tenant_id, actor, f"saml_connection.{what}", target, details)
