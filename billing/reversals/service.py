"""Reverses one request's record or one charge that was billed in error.

Refunds of money that was paid are made elsewhere, by credit notes (`billing.invoices.corrections`).
"""

from __future__ import annotations

from datetime import UTC, datetime

from billing.charges import ChargeRepository
from billing.errors import AlreadyReversed, NothingToReverse, StillRunning
from billing.models import Charge, Reversal, UsageRecord
from billing.repository import UsageRepository
from billing.reversals.repository import ReversalRepository
from billing.rollups import KEYS, SUMS, hold_ledger
from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog


class ReversalService:
    """Reverses records and charges, for the operator."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reverse_request(
        self,
        tenant_id: str,
        request_id: str,
        submitted_at: datetime,
        *,
        reason: str,
        by: Actor,
        now: datetime | None = None,
    ) -> Reversal:
        """Reverses all that a request was billed for. `submitted_at` is exact to a second; each prompt of a
        list is a request of its own.

        The request must have ended, since later usage events would be billed. Raises NothingToReverse,
        StillRunning, AlreadyReversed, DatabaseUnavailable.
        """
        async with self._database.write(
            EVERY_TENANT
        ) as session:  # the owner of a shared adapter loses its part
            await hold_ledger(session)
            record = await UsageRepository(session, tenant_id).near(request_id, submitted_at)
            if record is None:
                raise NothingToReverse(request_id)
            if record.finish_reason is None:
                raise StillRunning(request_id)
            reversals = ReversalRepository(session, tenant_id)
            known = await reversals.of_request(record.submitted_at, request_id)
            if known is not None:
                raise AlreadyReversed(request_id, known.id)
            reversal = _of_record(record, reason, by, now or datetime.now(UTC))
            await reversals.add(reversal)
            await _note(session, reversal, by, request_id)
        return reversal

    async def reverse_charge(
        self, tenant_id: str, charge_id: str, *, reason: str, by: Actor, now: datetime | None = None
    ) -> Reversal:
        """Reverses a charge. Raises NothingToReverse, AlreadyReversed, DatabaseUnavailable."""
        async with self._database.write(tenant_id) as session:
            await hold_ledger(session)
            charge = await ChargeRepository(session, tenant_id).find(charge_id)
            if charge is None:
                raise NothingToReverse(charge_id)
            reversals = ReversalRepository(session, tenant_id)
            known = await reversals.of_charge(charge_id)
            if known is not None:
                raise AlreadyReversed(charge_id, known.id)
            reversal = _of_charge(charge, reason, by, now or datetime.now(UTC))
            await reversals.add(reversal)
            await _note(session, reversal, by, charge_id)
        return reversal


def _of_record(record: UsageRecord, reason: str, by: Actor, now: datetime) -> Reversal:
    return Reversal(
        id=new_id("rev"),
        tenant_id=record.tenant_id,
        at=now,
        submitted_at=record.submitted_at,
        request_id=record.request_id,
        **{name: getattr(record, name) or "" for name in KEYS},
        num_requests=1,
        **{name: getattr(record, name) for name in SUMS if name not in ("num_requests", "cost")},
        cost=record.billed,
        owner_id=record.owner_id,
        share_id=record.share_id,
        owner_part=record.owner_part,
        reason=reason,
        actor=f"{by.kind}:{by.id}",
    )


def _of_charge(charge: Charge, reason: str, by: Actor, now: datetime) -> Reversal:
    return Reversal(
        id=new_id("rev"),
        tenant_id=charge.tenant_id,
        at=now,
        charge_id=charge.id,
        cost=charge.cost,
        reason=reason,
        actor=f"{by.kind}:{by.id}",
    )


async def _note(session: WriteSession, reversal: Reversal, by: Actor, what: str) -> None:
    await AuditLog.record(
        session,
        reversal.tenant_id,
        by,
        "usage.reversed",
        ("reversal", reversal.id),
        {"of": what, "cost": reversal.cost, "reason": reversal.reason},
    )
