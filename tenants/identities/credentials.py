"""Manages passwords of console users: checks, changes and resets them.

Every method is one transaction. Changing a password ends the user's earlier sessions (`User.sessions_from`).
Reset tokens are returned to the caller, which mails them or shows them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from db.session import EVERY_TENANT, Database, WriteSession
from tenants import keys, passwords
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import ResetInvalid, UserNotFound, WrongPassword
from tenants.identities.repository import IdentityRepository
from tenants.key_secrets import KeySecrets
from tenants.members.account import Membership
from tenants.members.changes import require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.models import PasswordReset, User
from tenants.repository import TenantDirectory
from tenants.validation import is_email

RESET_LIFE = timedelta(hours=1)
"""Lifetime of a reset token that is mailed."""
HANDED_LIFE = timedelta(days=1)
"""Lifetime of a reset token that an administrator hands over."""


@dataclass(frozen=True, slots=True)
class CreatedReset:
    """A new reset token. The plaintext is shown or mailed once and never stored."""

    email: str
    token: str = field(repr=False)
    expires_at: datetime


class Credentials:
    """Passwords of all tenants' users. Tokens are stored as HMACs under `secret`, which is the server's."""

    def __init__(self, database: Database, secret: str | KeySecrets) -> None:
        self._database = database
        self._hasher = keys.KeyHasher(secret)

    async def check(self, account: Membership, password: str) -> str:
        """Checks the user's password and returns its hash. Raises WrongPassword, also for users without
        one.
        """
        async with self._database.read(account.tenant_id) as session:
            user = await MemberRepository(session, account.tenant_id).find(account.user_id)
        stored = None if user is None else user.password_hash
        right = await asyncio.to_thread(passwords.verify_password, stored, password)
        if stored is None or not right:
            raise WrongPassword
        return stored

    async def change(self, account: Membership, old: str, new: str, actor: Actor) -> None:
        """Sets a new password. Raises WrongPassword, ValueError naming the field."""
        before = await self.check(account, old)
        password_hash = await asyncio.to_thread(passwords.hash_password, new)
        async with self._database.write(account.tenant_id) as session:
            # Locked and compared again: another request may have changed it meanwhile.
            user = await MemberRepository(session, account.tenant_id).lock(account.user_id)
            if user is None:
                raise UserNotFound(account.user_id)
            if user.password_hash != before:
                raise WrongPassword
            await self._set(session, user, password_hash, actor, {"by": "password"})

    async def request_reset(self, email: str) -> CreatedReset | None:
        """Creates a reset token for the user with this address; returns None if there is none who can sign
        in. The caller must not reveal which, not by the response's time either.
        """
        if not is_email(email):
            return None
        async with self._database.read(EVERY_TENANT) as session:
            found = await TenantDirectory(session).user_by_email(email)
        if found is None:
            return None
        user, tenant, _ = found
        if user.disabled_at is not None or tenant.disabled_at is not None:
            return None
        async with self._database.write(tenant.id) as writing:
            return await self._add_reset(writing, user, RESET_LIFE)

    async def create_reset(self, tenant_id: str, user_id: str, actor: Actor) -> CreatedReset:
        """Creates a reset token for another member, to hand over. Raises UserNotFound, OwnersOnly if the
        member is an owner.
        """
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            user = await members.lock(user_id)
            if user is None:
                raise UserNotFound(user_id)
            await require_may_appoint(members, actor, user.role)
            made = await self._add_reset(session, user, HANDED_LIFE)
            details = {"email": user.email}
            await AuditLog.record(
                session, tenant_id, actor, "password.reset_made", ("user", user_id), details
            )
        return made

    async def reset(
        self, token: str, new: str, *, address: str | None = None, request_id: str | None = None
    ) -> None:
        """Sets a new password with a reset token, which is good once. A second factor stays required. Raises
        ResetInvalid if the token is not valid, for whatever reason, ValueError naming the field.
        """
        if not keys.well_formed_reset(token):
            raise ResetInvalid
        async with self._database.read(EVERY_TENANT) as reading:
            found = await TenantDirectory(reading).reset(self._hasher.digests(token))
        if found is None:
            raise ResetInvalid
        tenant_id, digest = found
        # Hashing is expensive, so it happens only once the token is known to exist.
        password_hash = await asyncio.to_thread(passwords.hash_password, new)
        async with self._database.write(tenant_id) as session:
            row = await IdentityRepository(session, tenant_id).lock_reset(digest)
            tenant = await TenantDirectory(session).tenant(tenant_id)
            if row is None or row.expires_at <= datetime.now(UTC):
                raise ResetInvalid
            user = await MemberRepository(session, tenant_id).lock(row.user_id)
            if user is None or user.disabled_at is not None or tenant is None or tenant.disabled_at:
                raise ResetInvalid
            actor = Actor("user", user.id, address, request_id, user_id=user.id, email=user.email)
            await self._set(session, user, password_hash, actor, {"by": "token"})

    async def end_sessions(self, account: Membership) -> None:
        """Ends all sessions of the user that began before now."""
        async with self._database.write(account.tenant_id) as session:
            user = await MemberRepository(session, account.tenant_id).lock(account.user_id)
            if user is not None:
                user.sessions_from = datetime.now(UTC)

    async def _add_reset(self, session: WriteSession, user: User, life: timedelta) -> CreatedReset:
        made, now = keys.generate_reset(), datetime.now(UTC)
        identities = IdentityRepository(session, user.tenant_id)
        await identities.drop_old_resets(user.id, now)
        identities.add_own(
            PasswordReset(
                digest=self._hasher.digest(made.plaintext),
                secret_id=self._hasher.secret_id,
                tenant_id=user.tenant_id,
                user_id=user.id,
                created_at=now,
                expires_at=now + life,
            )
        )
        return CreatedReset(user.email, made.plaintext, now + life)

    async def _set(
        self, session: WriteSession, user: User, password_hash: str, actor: Actor, details: dict[str, str]
    ) -> None:
        identities = IdentityRepository(session, user.tenant_id)
        await identities.set_password(user.id, password_hash, datetime.now(UTC))
        await AuditLog.record(session, user.tenant_id, actor, "password.changed", ("user", user.id), details)
