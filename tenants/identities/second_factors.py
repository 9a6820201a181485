"""Second factors: set up by whoever has signed in, asked for at every sign-in from then on.

Every method is one transaction. Owns that a code is good once. Counting wrong ones is the console's business.
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
from tenants.errors import NoSecondFactor, SecondFactorKept, SecondFactorMissing, UserNotFound, WrongCode
from tenants.identities import codes
from tenants.identities.repository import IdentityRepository
from tenants.identities.sealing import Sealer
from tenants.members.account import Membership
from tenants.members.repository import MemberRepository
from tenants.members.service import require_may_appoint
from tenants.models import SecondFactor

Proof = Literal["totp", "recovery code"]


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an authenticator application is given, until it has proved that it has it."""

    secret: str = field(repr=False)
    """In base 32."""
    uri: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FactorView:
    since: datetime
    num_recovery: int
    """Codes to recover with that are left."""


class SecondFactors:
    """Of every tenant's users. `secret` is the server's, under which theirs are sealed."""

    def __init__(self, database: Database, secret: str) -> None:
        self._database = database
        self._sealer = Sealer(secret, "second factors")
        self._hasher = keys.KeyHasher(secret)

    async def find(self, account: Membership) -> FactorView | None:
        """None while there is none, or none yet."""
        async with self._database.read(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id)
        if row is None or row.confirmed_at is None:
            return None
        return FactorView(row.confirmed_at, len(row.recovery))

    async def whose(self, tenant_id: str, user_ids: Collection[str]) -> set[str]:
        """Which of these users have one."""
        async with self._database.read(tenant_id) as session:
            return await IdentityRepository(session, tenant_id).with_factor(user_ids)

    async def begin(self, account: Membership) -> Enrolment:
        """A secret to set up with; asked again before it is confirmed, the same. Raises SecondFactorKept
        when there is a second factor already.
        """
        async with self._database.write(account.tenant_id) as session:
            if await MemberRepository(session, account.tenant_id).lock(account.user_id) is None:
                raise UserNotFound(account.user_id)
            factors = IdentityRepository(session, account.tenant_id)
            row = await factors.factor(account.user_id)
            if row is not None and row.confirmed_at is not None:
                raise SecondFactorKept("there is one already: remove it before you set up another")
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
        """From now on it is asked for. The codes to recover with, shown this once. Raises WrongCode,
        NoSecondFactor when none is being set up.
        """
        now, recovery = datetime.now(UTC), codes.new_recovery_codes()
        async with self._database.write(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id, lock=True)
            if row is None or row.confirmed_at is not None:
                raise NoSecondFactor
            step = codes.matching_step(self._opened(row), written, now, row.last_step)
            if step is None:
                raise WrongCode
            row.confirmed_at, row.last_step, row.recovery = now, step, self._digests(recovery)
            await _record(session, account, actor, "second_factor.added")
        return recovery

    async def verify(self, tenant_id: str, user_id: str, written: str) -> Proof:
        """By which of the two kinds of code; neither is good again. Raises WrongCode, NoSecondFactor."""
        async with self._database.write(tenant_id) as session:
            # Held: of two who come with one code at once, the second finds it used.
            row = await IdentityRepository(session, tenant_id).factor(user_id, lock=True)
            if row is None or row.confirmed_at is None:
                raise NoSecondFactor
            return self._use(row, written)

    async def renew_recovery(self, account: Membership, written: str, actor: Actor) -> list[str]:
        """Other codes to recover with, in place of all of before, for a code. Raises WrongCode,
        NoSecondFactor.
        """
        recovery = codes.new_recovery_codes()
        async with self._database.write(account.tenant_id) as session:
            row = await IdentityRepository(session, account.tenant_id).factor(account.user_id, lock=True)
            if row is None or row.confirmed_at is None:
                raise NoSecondFactor
            self._use(row, written)
            row.recovery = self._digests(recovery)
            await _record(session, account, actor, "second_factor.recovery_codes_renewed")
        return recovery

    async def remove(self, account: Membership, actor: Actor) -> None:
        """Their own; whoever calls has asked who they are. What was only being set up goes without a word.
        Raises SecondFactorKept while the tenant, or whoever runs the service of its operators, asks for one.
        """
        async with self._database.write(account.tenant_id) as session:
            factors = IdentityRepository(session, account.tenant_id)
            tenant, row = await factors.lock_tenant(), await factors.factor(account.user_id, lock=True)
            if row is None:
                return
            if row.confirmed_at is not None:
                if account.is_operator and account.needs_second_factor:
                    raise SecondFactorKept("every operator has to have a second factor")
                if tenant is not None and tenant.second_factor_required:
                    raise SecondFactorKept("your organization asks every member for a second factor")
                await _record(session, account, actor, "second_factor.removed")
            await factors.drop_factor(account.user_id)

    async def take_away(self, tenant_id: str, user_id: str, actor: Actor) -> None:
        """Another member's, who has lost it: they sign in without, and set up another where the tenant asks
        for one. Raises UserNotFound, NoSecondFactor, OwnersOnly for an owner's.
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
        """Ask all of the tenant's users for one, or no longer. Raises SecondFactorMissing when whoever asks
        has none: they would shut themselves out.
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
        digest = None if recovery is None else self._hasher.digest(recovery)
        left = [bytes(one) for one in row.recovery]
        if digest is None or digest not in left:
            raise WrongCode
        row.recovery = [one for one in left if one != digest]
        return "recovery code"

    def _opened(self, row: SecondFactor) -> bytes:
        return self._sealer.open(bytes(row.secret), row.user_id)

    def _digests(self, recovery: list[str]) -> list[bytes]:
        return [self._hasher.digest(code) for code in recovery]


async def _record(session: WriteSession, account: Membership, actor: Actor, type: str) -> None:
    await AuditLog.record(session, account.tenant_id, actor, type, ("user", account.user_id))
