"""Starts and ends impersonation: an operator acts as a member in a tenant's console, for a reason, for a
while.

Each start and end is recorded in the tenant's audit log and in the service's. Sessions are in the console.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from db.session import EVERY_TENANT, Database
from tenants.actors import Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog
from tenants.errors import TenantNotFound, UserNotFound
from tenants.members.account import Membership, account_of
from tenants.members.repository import MemberRepository
from tenants.models import OPERATOR_TENANT
from tenants.repository import TenantDirectory
from tenants.views import STANDARD, plan_view

LONGEST = timedelta(hours=4)
MAX_REASON_LEN = 300


@dataclass(frozen=True, slots=True)
class Impersonation:
    """A granted impersonation."""

    account: Membership
    """The member that the operator acts as."""
    is_full: bool
    """Whether the operator can make changes; otherwise the access is read-only."""
    reason: str
    ends_at: datetime


class Impersonations:
    """Grants, ends and records impersonations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self,
        operator: Actor,
        tenant_id: str,
        user_id: str,
        *,
        is_full: bool,
        reason: str,
        lasting: timedelta,
    ) -> Impersonation:
        """Grants an impersonation. Raises TenantNotFound, UserNotFound, ValueError naming the field."""
        reason = " ".join(reason.split())
        if not 5 <= len(reason) <= MAX_REASON_LEN or not reason.isprintable():
            raise ValueError(f"reason must have 5 to {MAX_REASON_LEN} printable characters")
        if not timedelta(minutes=1) <= lasting <= LONGEST:
            raise ValueError(f"minutes must be from 1 to {LONGEST // timedelta(minutes=1)}")
        account = await self.account(tenant_id, user_id)
        ends_at = (datetime.now(UTC) + lasting).replace(microsecond=0)
        details = {
            "reason": reason,
            "access": "full" if is_full else "read-only",
            "email": account.email,
            "until": ends_at.isoformat(),
        }
        await self._record("impersonation.began", operator, account, details)
        return Impersonation(account, is_full, reason, ends_at)

    async def end(self, operator: Actor, tenant_id: str, user_id: str) -> None:
        """Records that an impersonation ended early. Its expiry is recorded when it begins."""
        account = await self.account(tenant_id, user_id)
        await self._record("impersonation.ended", operator, account, {"email": account.email})

    async def account(self, tenant_id: str, user_id: str) -> Membership:
        """Returns the member as of now, also of a disabled tenant: an operator may have to see why. Raises
        TenantNotFound, UserNotFound.
        """
        if tenant_id == OPERATOR_TENANT:
            raise TenantNotFound(tenant_id)
        async with self._database.read(tenant_id) as session:
            directory = TenantDirectory(session)
            tenant, plan = await directory.tenant(tenant_id), await directory.plan_of(tenant_id)
            user = await MemberRepository(session, tenant_id).find(user_id)
        if tenant is None:
            raise TenantNotFound(tenant_id)
        if user is None or user.disabled_at is not None:
            raise UserNotFound(user_id)
        return account_of(user, tenant, STANDARD if plan is None else plan_view(plan))

    async def _record(self, type: str, operator: Actor, account: Membership, details: dict[str, str]) -> None:
        """Records in the tenant's log, which its members can read, and in the service's."""
        target, all_details = ("user", account.user_id), {"tenant": account.tenant_id, **details}
        async with self._database.write(EVERY_TENANT) as session:
            await AuditLog.record(session, account.tenant_id, operator, type, target, details)
            await AuditLog.record(session, OPERATOR_CHAIN, operator, type, target, all_details)
