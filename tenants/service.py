"""What can be done to tenants and keys. Every method is one transaction, and tells the caches after
its commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import Database
from tenants import keys
from tenants.accounts import Account, UserAccounts
from tenants.context import KeyKind
from tenants.errors import KeyNotFound, NameTaken, TenantNotFound
from tenants.models import ApiKey, Tenant
from tenants.repository import TenantAccounts, TenantDirectory
from tenants.resolver import KeyResolver, publish_key_change

__all__ = ["Account", "CreatedKey", "KeyResolver", "TenantService", "UserAccounts"]

MAX_NAME_LEN = 100
_SCOPE = re.compile(r"[a-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key as it is shown, once, to whoever asked for it."""

    id: str
    plaintext: str = field(repr=False)
    prefix: str
    kind: KeyKind
    expires_at: datetime | None


class TenantService:
    """Tenants and their keys. `secret` is the server's, under which keys are stored."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis, secret: str) -> None:
        self._database = database
        self._redis = redis_client
        self._hasher = keys.KeyHasher(secret)

    async def create_tenant(self, name: str) -> Tenant:
        """Raises NameTaken, ValueError for a name no list could show."""
        tenant = Tenant(id=new_id("tnt"), name=_checked_name("name", name))
        try:
            async with self._database.write() as session:
                TenantDirectory(session).add(tenant)
        except IntegrityError as error:
            raise NameTaken("tenant name", name) from error
        return tenant

    async def find_tenant(self, id_or_name: str) -> Tenant:
        """Raises TenantNotFound."""
        async with self._database.read() as session:
            directory = TenantDirectory(session)
            found = await directory.tenant(id_or_name) or await directory.tenant_by_name(id_or_name)
        if found is None:
            raise TenantNotFound(id_or_name)
        return found

    async def list_tenants(self) -> list[Tenant]:
        async with self._database.read() as session:
            return await TenantDirectory(session).tenants()

    async def set_tenant_disabled(self, tenant_id: str, disabled: bool) -> None:
        """Shut every key and user of a tenant out, or let them in again, within a second. Raises
        TenantNotFound.
        """
        async with self._database.write() as session:
            if not await TenantAccounts(session, tenant_id).disable(disabled):
                raise TenantNotFound(tenant_id)
            session.after_commit(lambda: publish_key_change(self._redis, None))

    async def create_key(
        self,
        tenant_id: str,
        name: str,
        *,
        kind: KeyKind = "inference",
        scopes: frozenset[str] = frozenset(),
        expires_at: datetime | None = None,
    ) -> CreatedKey:
        """Make a key. Its text is in the answer and nowhere else. Raises TenantNotFound, ValueError."""
        name = _checked_name("name", name)
        for scope in scopes:
            if _SCOPE.fullmatch(scope) is None:
                raise ValueError(f"scopes: {scope!r} is not a scope")
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= datetime.now(UTC)):
            raise ValueError("expires_at must be in the future, with a time zone")
        made = keys.generate(kind)
        row = ApiKey(
            id=new_id("key"),
            tenant_id=tenant_id,
            digest=self._hasher.digest(made.plaintext),
            prefix=made.prefix,
            name=name,
            kind=kind,
            scopes=sorted(scopes),
            expires_at=expires_at,
        )
        async with self._database.write() as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            TenantAccounts(session, tenant_id).add_own(row)
        return CreatedKey(row.id, made.plaintext, made.prefix, kind, expires_at)

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        async with self._database.read() as session:
            return await TenantAccounts(session, tenant_id).keys()

    async def find_key(self, tenant_id: str, key_id: str) -> ApiKey:
        """Raises KeyNotFound."""
        async with self._database.read() as session:
            found = await TenantAccounts(session, tenant_id).key(key_id)
        if found is None:
            raise KeyNotFound(key_id)
        return found

    async def revoke_key(self, tenant_id: str, key_id: str) -> None:
        """Revoke a key in every process within a second. Revoking again changes nothing. Raises
        KeyNotFound.
        """
        async with self._database.write() as session:
            digest = await TenantAccounts(session, tenant_id).revoke_key(key_id)
            if digest is None:
                raise KeyNotFound(key_id)
            session.after_commit(lambda: publish_key_change(self._redis, digest))


def _checked_name(field_name: str, name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME_LEN or not name.isprintable():
        raise ValueError(f"{field_name} must have 1 to {MAX_NAME_LEN} printable characters")
    return name.strip()
