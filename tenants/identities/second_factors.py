"""Manages second factors of console users: enrols, verifies and removes them.

Every method is one transaction. Each code is accepted once. Counting failed attempts is in the console.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from db.session import Database, WriteSession
from tenants import keys
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import NoSecondFactor, SecondFactorConflict, SecondFactorMissing, UserNotFound, WrongCode
from tenants.identities import codes
from tenants.identities.repository import IdentityRepository
from tenants.identities.sealing import RotatingSealer
from tenants.key_secrets import KeySecrets
from tenants.members.account import Membership
from tenants.members.changes import require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.models import SecondFactor

Proof = Literal["totp", "recovery code"]
PURPOSE = "second factors"
"""What the secrets of second factors are sealed for."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The secret for an authenticator app, shown until the user confirms it with a code."""

    secret: str = field(repr=False)
    """Base 32."""
    uri: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FactorView:
    since: datetime
    num_recovery: int
    """Recovery codes that are left."""


class SecondFactors:
    """Second factors of all tenants' users, encrypted under `secret`, which is the server's."""

    def __init__(self, database: Database, secret: str | KeySecrets) -> None:
        self._database = database
        self._sealer = RotatingSealer(secret, PURPOSE)
        self._hasher = keys.KeyHasher(secret)

    async def find(self, account: Membership) -> FactorView | None:
        """Returns the user's confirmed second factor, or None."""
        async with self._database.read(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id)
        if row is None or row.confirmed_at is None:
            return None
        return FactorView(row.confirmed_at, len(row.recovery))

    async def users_with_factor(self, tenant_id: str, user_ids: Collection[str]) -> set[str]:
        """Returns which of these users have a second factor."""
        async with self._database.read(tenant_id) as session:
            return await IdentityRepository(session, tenant_id).with_factor(user_ids)

    async def begin(self, account: Membership) -> Enrolment:
        """Starts the enrolment and returns its secret, the same one until it is confirmed. Raises
        SecondFactorConflict if the user already has a second factor.
        """
        async with self._database.write(account.tenant_id) as session:
            if await MemberRepository(session, account.tenant_id).lock(account.user_id) is None:
                raise UserNotFound(account.user_id)
            factors = IdentityRepository(session, account.tenant_id)
            row = await factors.factor(account.user_id)
            if row is not None and row.confirmed_at is not None:
                raise SecondFactorConflict(
                    "you already have a second factor: remove it before you set up another"
                )
            if row is None:
                secret = codes.new_secret()
                row = SecondFactor(
                    user_id=account.user_id,
                    tenant_id=account.tenant_id,
                    secret=self._sealer.seal(secret, account.user_id),
                    created_at=datetime.now(UTC),
                )
                factors.add_own(row)
            else:
                secret = self._opened(row)
        return Enrolment(codes.secret_text(secret), codes.uri(secret, account.email))

    async def confirm(self, account: Membership, written: str, actor: Actor) -> list[str]:
        """Completes the enrolment; sign-ins require a code from now on. Returns the recovery codes, which are
        shown once. Raises WrongCode, NoSecondFactor if no enrolment was started.
        """
        now, recovery = datetime.now(UTC), codes.new_recovery_codes()
        async with self._database.write(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id, lock=True)
            if row is None or row.confirmed_at is not None:
                raise NoSecondFactor
            step = codes.matching_step(self._opened(row), written, now, row.last_step)
            if step is None:
                raise WrongCode
            row.confirmed_at, row.last_step = now, step
            self._keep_recovery(row, recovery)
            await _record(session, account, actor, "second_factor.added")
        return recovery

    async def verify(self, tenant_id: str, user_id: str, written: str) -> Proof:
        """Uses up a code and returns its kind. Raises WrongCode, NoSecondFactor."""
        async with self._database.write(tenant_id) as session:
            # Locked: of two requests with the same code, the second finds it used.
            row = await IdentityRepository(session, tenant_id).factor(user_id, lock=True)
            if row is None or row.confirmed_at is None:
                raise NoSecondFactor
            return self._use(row, written)

    async def renew_recovery(self, account: Membership, written: str, actor: Actor) -> list[str]:
        """Replaces the recovery codes, in exchange for a valid code. Raises WrongCode, NoSecondFactor."""
        recovery = codes.new_recovery_codes()
        async with self._database.write(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id, lock=True)
            if row is None or row.confirmed_at is None:
                raise NoSecondFactor
            self._use(row, written)
            self._keep_recovery(row, recovery)
            await _record(session, account, actor, "second_factor.recovery_codes_renewed")
        return recovery

    async def remove(self, account: Membership, actor: Actor) -> None:
        """Removes the user's own second factor; the caller has authenticated the user again. An unconfirmed
        enrolment is removed without a record. Raises SecondFactorConflict while the tenant, or for operators
        the service, requires one.
        """
        async with self._database.write(account.tenant_id) as session:
            factors = IdentityRepository(session, account.tenant_id)
            tenant, row = await factors.lock_tenant(), await factors.factor(account.user_id, lock=True)
            if row is None:
                return
            if row.confirmed_at is not None:
                if account.is_operator and account.needs_second_factor:
                    raise SecondFactorConflict("every operator needs a second factor")
                if tenant is not None and tenant.second_factor_required:
                    raise SecondFactorConflict("your organization requires a second factor of every member")
                await _record(session, account, actor, "second_factor.removed")
            await factors.drop_factor(account.user_id)

    async def remove_for_member(self, tenant_id: str, user_id: str, actor: Actor) -> None:
        """Removes the second factor of a member who has lost it. The member then signs in without one, and
        enrols again if the tenant requires it. Raises UserNotFound, NoSecondFactor, OwnersOnly if the member
        is an owner.
        """
        async with self._database.write(tenant_id) as session:
            members, factors = MemberRepository(session, tenant_id), IdentityRepository(session, tenant_id)
            user = await members.lock(user_id)
            if user is None:
                raise UserNotFound(user_id)
            await require_may_appoint(members, actor, user.role)
            row = await factors.factor(user_id, lock=True)
            if row is None:
                raise NoSecondFactor
            await factors.drop_factor(user_id)
            details = {"email": user.email}
            await AuditLog.record(
                session, tenant_id, actor, "second_factor.removed", ("user", user_id), details
            )

    async def require(self, account: Membership, required: bool, actor: Actor) -> None:
        """Requires a second factor of all the tenant's users, or stops requiring it. Raises
        SecondFactorMissing if the acting user has none and would lock themselves out.
        """
        if required and not account.has_second_factor:
            raise SecondFactorMissing
        async with self._database.write(account.tenant_id) as session:
            tenant = await IdentityRepository(session, account.tenant_id).lock_tenant()
            if tenant is None or tenant.second_factor_required == required:
                return
            tenant.second_factor_required = required
            await AuditLog.record(
                session,
                account.tenant_id,
                actor,
                "organization.updated",
                ("organization", account.tenant_id),
                {"second_factor_required": required},
            )

    def _use(self, row: SecondFactor, written: str) -> Proof:
        step = codes.matching_step(self._opened(row), written, datetime.now(UTC), row.last_step)
        if step is not None:
            row.last_step = step
            return "totp"
        recovery = codes.read_recovery(written)
        digests = [] if recovery is None else self._hasher.digests(recovery)
        given = [bytes(one) for one in row.recovery]
        left = [one for one in given if one not in digests]
        if len(left) == len(given):
            raise WrongCode
        row.recovery = left
        return "recovery code"

    def _opened(self, row: SecondFactor) -> bytes:
        return self._sealer.open(bytes(row.secret), row.user_id)

    def _keep_recovery(self, row: SecondFactor, recovery: list[str]) -> None:
        row.recovery = [self._hasher.digest(code) for code in recovery]
        row.secret_id = self._hasher.secret_id


async def _record(session: WriteSession, account: Membership, actor: Actor, type: str) -> None:
    await AuditLog.record(session, account.tenant_id, actor, type, ("user", account.user_id))
