"""Manages the bearer tokens of identity providers, and authenticates requests by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from db.base import new_id
from db.session import EVERY_TENANT, Database
from tenants import keys
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import TenantNotFound
from tenants.key_secrets import KeySecrets
from tenants.members.changes import require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.provisioning.errors import InvalidScimToken, ScimTokenNotFound, TooManyScimTokens
from tenants.provisioning.repository import ScimTokenDirectory, ScimTokenRepository
from tenants.repository import LAST_USED_PRECISION, TenantDirectory
from tenants.scim.models import ScimToken
from tenants.validation import checked_name

MAX_TOKENS = 10


@dataclass(frozen=True, slots=True)
class CreatedScimToken:
    """A new token. The plaintext is shown once and never stored."""

    row: ScimToken
    plaintext: str = field(repr=False)


class ScimTokens:
    """SCIM tokens of all tenants, stored as HMACs under `secret`, which is the server's.

    A token can make owners, so only owners create and revoke tokens. Nothing is cached: a revoked token is
    refused at once.
    """

    def __init__(self, database: Database, secret: str | KeySecrets) -> None:
        self._database = database
        self._hasher = keys.KeyHasher(secret)

    async def list(self, tenant_id: str) -> Sequence[ScimToken]:
        """Returns the tokens that are not revoked, newest first."""
        async with self._database.read(tenant_id) as session:
            return [*await ScimTokenRepository(session, tenant_id).list()]

    async def create(self, tenant_id: str, name: str, actor: Actor) -> CreatedScimToken:
        """Raises OwnersOnly, RightsNotHeld, TooManyScimTokens, TenantNotFound, ValueError."""
        name, made = checked_name("name", name), keys.generate_scim()
        row = ScimToken(
            id=new_id("scimtok"),
            tenant_id=tenant_id,
            digest=self._hasher.digest(made.plaintext),
            secret_id=self._hasher.secret_id,
            prefix=made.prefix,
            name=name,
            created_at=datetime.now(UTC),
        )
        async with self._database.write(tenant_id) as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            await require_may_appoint(MemberRepository(session, tenant_id), actor, "owner")
            tokens = ScimTokenRepository(session, tenant_id)
            await tokens.advisory_lock("scim tokens")
            if len(await tokens.list()) >= MAX_TOKENS:
                raise TooManyScimTokens(MAX_TOKENS)
            tokens.add_own(row)
            target = ("scim_token", row.id)
            await AuditLog.record(session, tenant_id, actor, "scim_token.created", target, {"name": name})
        return CreatedScimToken(row, made.plaintext)

    async def revoke(self, tenant_id: str, token_id: str, actor: Actor) -> None:
        """Raises ScimTokenNotFound, OwnersOnly, RightsNotHeld."""
        async with self._database.write(tenant_id) as session:
            row = await ScimTokenRepository(session, tenant_id).lock(token_id)
            if row is None:
                raise ScimTokenNotFound(token_id)
            await require_may_appoint(MemberRepository(session, tenant_id), actor, "owner")
            row.revoked_at = datetime.now(UTC)
            details = {"name": row.name}
            await AuditLog.record(
                session, tenant_id, actor, "scim_token.deleted", ("scim_token", row.id), details
            )

    async def authenticate(self, plaintext: str) -> ScimToken:
        """Returns the token. Raises InvalidScimToken."""
        if not keys.well_formed_scim(plaintext):
            raise InvalidScimToken
        digests, now = self._hasher.digests(plaintext), datetime.now(UTC)
        async with self._database.read(EVERY_TENANT) as session:
            row = await ScimTokenDirectory(session).by_digest(digests)
        if row is None:
            raise InvalidScimToken
        is_current = bytes(row.digest) == digests[0]
        if not is_current or row.last_used_at is None or row.last_used_at < now - LAST_USED_PRECISION:
            async with self._database.write(row.tenant_id) as writing:
                tokens = ScimTokenRepository(writing, row.tenant_id)
                await tokens.note_used(row.id, now, digests[0], self._hasher.secret_id)
        return row
