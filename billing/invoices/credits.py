"""Keeps tenants' balances: money put in and taken out, and what prepaid usage draws.

balance = all entries - the ledger's cost of the prepaid periods. So there is no entry per request, and the
balance is as exact as the ledger. Entries never change; of each kind, a reference counts once, so recording a
payment again is harmless. `tenants.quotas` limits what prepaid usage may draw in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import redis.asyncio

from billing.invoices.errors import CreditNotAllowed
from billing.invoices.ledger import MonthLedger
from billing.invoices.models import CreditEntry, PrepaidPeriod
from billing.invoices.repository import AccountRepository, MonthRepository
from billing.months import minute_of
from db.base import new_id
from db.session import EVERY_TENANT, Database, ReadSession, WriteSession
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.quotas.balance import set_balance

CreditKind = Literal["top_up", "grant", "credit_note", "kept", "applied", "refund", "expiry"]
MAX_AMOUNT = 10**15
"""Micro-USD, that is a thousand million dollars."""
MAX_REFERENCE = 200
"""Characters."""
EXPIRY_PATIENCE = timedelta(days=40)
"""How long after a credit expires it is still taken back, in case no worker ran for a while."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A tenant's balance in micro-USD."""

    credits: int
    """The sum of all entries."""
    used: int
    """The cost of usage in prepaid periods."""

    @property
    def amount(self) -> int:
        """What is left; negative if usage was recorded late."""
        return self.credits - self.used


async def balance_of(session: ReadSession | WriteSession, tenant_id: str) -> Balance:
    """Returns the balance in this transaction. To decide by it, hold the account first."""
    accounts = AccountRepository(session, tenant_id)
    used = await drawn_in(MonthLedger(session, tenant_id), await accounts.periods())
    return Balance(await accounts.credits_sum(), used)


async def drawn_in(ledger: MonthLedger, periods: Sequence[PrepaidPeriod]) -> int:
    """Returns micro-USD of usage in these periods."""
    return sum([await ledger.total(period.since, period.until) for period in periods])


async def record_credit(
    session: WriteSession,
    redis_client: redis.asyncio.Redis | None,
    tenant_id: str,
    kind: CreditKind,
    amount: int,
    reference: str,
    actor: Actor,
    *,
    at: datetime,
    reason: str = "",
    invoice_id: str | None = None,
    expires_at: datetime | None = None,
) -> CreditEntry:
    """Adds an entry to the balance in this transaction, and returns it, or the existing entry of that kind
    and reference. Every process applies it within a second of the commit.

    Call it late in the transaction, because it writes the audit entry.
    """
    accounts = AccountRepository(session, tenant_id)
    account = await accounts.hold()
    known = await accounts.credit(kind, reference)
    if known is not None:
        return known
    entry = CreditEntry(
        id=new_id("crd"),
        tenant_id=tenant_id,
        at=at,
        kind=kind,
        amount=amount,
        reference=reference,
        reason=reason,
        invoice_id=invoice_id,
        expires_at=expires_at,
        actor=actor.audit_fields(),
    )
    accounts.add_own(entry)
    await session.flush()
    if account.mode == "prepaid":
        await set_balance(session, redis_client, tenant_id, await accounts.credits_sum())
    details = {"kind": kind, "amount": amount, "reference": reference}
    await AuditLog.record(session, tenant_id, actor, "credit.created", ("credit", entry.id), details)
    return entry


class CreditService:
    """Manages the balances of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def balance(self, tenant_id: str) -> Balance:
        """Returns a tenant's balance. Raises DatabaseUnavailable."""
        async with self._database.read(tenant_id) as session:
            return await balance_of(session, tenant_id)

    async def list(
        self, tenant_id: str, *, after: str | None = None, limit: int = 100, newest_first: bool = True
    ) -> list[CreditEntry]:
        async with self._database.read(tenant_id) as session:
            return await AccountRepository(session, tenant_id).credits(
                after=after, limit=limit, newest_first=newest_first
            )

    async def add(
        self,
        tenant_id: str,
        kind: Literal["top_up", "grant"],
        amount: int,
        reference: str,
        actor: Actor,
        *,
        now: datetime,
        reason: str = "",
        expires_at: datetime | None = None,
    ) -> CreditEntry:
        """Adds money to a balance, once per reference. Raises ValueError naming the field."""
        if not 0 < amount <= MAX_AMOUNT:
            raise ValueError(f"amount must be from 1 to {MAX_AMOUNT}, not {amount}")
        if not 0 < len(reference) <= MAX_REFERENCE:
            raise ValueError(f"reference must have from 1 to {MAX_REFERENCE} characters")
        if expires_at is not None and expires_at <= now:
            raise ValueError("expires_at must be in the future")
        async with self._database.write(tenant_id) as session:
            return await record_credit(
                session, self._redis, tenant_id, kind, amount, reference, actor, at=now, reason=reason,
                expires_at=expires_at,
            )  # fmt: skip

    async def pay_back(
        self, tenant_id: str, amount: int, reference: str, actor: Actor, *, now: datetime, reason: str = ""
    ) -> CreditEntry:
        """Takes out what is paid back to the tenant, once per reference, and returns the entry.

        `amount` in micro-USD. Raises CreditNotAllowed if the balance is less, ValueError naming the reference
        if it is unusable or was used for another amount.
        """
        if not 0 < len(reference) <= MAX_REFERENCE:
            raise ValueError(f"reference must have from 1 to {MAX_REFERENCE} characters")
        async with self._database.write(tenant_id) as session:
            await AccountRepository(session, tenant_id).hold()
            known = await AccountRepository(session, tenant_id).credit("refund", reference)
            if known is not None:
                if known.amount != -amount:
                    raise ValueError(
                        f"reference {reference!r} was paid back before with another amount; use a new one"
                    )
                return known
            left = (await balance_of(session, tenant_id)).amount
            if not 0 < amount <= left:
                raise CreditNotAllowed("amount", amount, max(0, left), "micro-USD")
            return await record_credit(
                session, self._redis, tenant_id, "refund", -amount, reference, actor, at=now, reason=reason
            )

    async def expire(self, now: datetime) -> int:
        """Takes back what is left of expired credits; returns how many had something left.

        What was taken from the balance since an entry was made counts against that entry first: where several
        could have been used, the tenant keeps more than its due, never less.
        """
        async with self._database.read(EVERY_TENANT) as session:
            expired = await MonthRepository(session).expired(now - EXPIRY_PATIENCE, now)
        taken_back = 0
        for entry in expired:
            async with self._database.write(entry.tenant_id) as session:
                taken_back += await self._expire(session, entry, now)
        return taken_back

    async def _expire(self, session: WriteSession, entry: CreditEntry, now: datetime) -> bool:
        accounts = AccountRepository(session, entry.tenant_id)
        await accounts.hold()
        if await accounts.credit("expiry", entry.id) is not None:
            return False
        used = await accounts.taken_since(entry.at)
        ledger = MonthLedger(session, entry.tenant_id)
        for period in await accounts.periods():
            since = max(period.since, minute_of(entry.at))
            if period.until is None or since < period.until:
                used += await ledger.total(since, period.until)
        left = min(entry.amount - used, (await balance_of(session, entry.tenant_id)).amount)
        if left <= 0:
            return False
        await record_credit(session, self._redis, entry.tenant_id, "expiry", -left, entry.id, SYSTEM, at=now)
        return True
