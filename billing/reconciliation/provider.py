"""Compares what was sent to the payment provider with the ledger, and with the provider's sums."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from billing.payments.gateway import PaymentGateway
from billing.payments.planning import MeterPlanning
from billing.reconciliation.differences import Difference
from billing.reconciliation.repository import BooksRepository
from db.session import EVERY_TENANT, Database

PLANNED_WITHIN = timedelta(hours=3)
SENT_WITHIN = timedelta(hours=3)
SUMMED_WITHIN = timedelta(hours=2)
"""The provider's sums lag behind what it accepted."""


async def compare_planning(database: Database, now: datetime) -> list[Difference]:
    """Returns hours of the ledger that should be planned by now, and events that need an operator. Raises
    DatabaseUnavailable.
    """
    found = [
        Difference("meter_events", tenant_id, "micro-USD not planned, of the hour", hour, value, 0)
        for tenant_id, hour, value in await MeterPlanning(database).unplanned(now)
        if hour < now - PLANNED_WITHIN
    ]
    async with database.read(EVERY_TENANT) as session:
        stuck = await BooksRepository(session).stuck_events()
    found += [
        Difference(
            "meter_events",
            one.tenant_id,
            f"{one.identifier} waits for a person: {one.error}",
            one.hour,
            one.value,
            0,
        )
        for one in stuck
    ]
    return found


async def compare_provider(
    database: Database, gateway: PaymentGateway, start: datetime, end: datetime, now: datetime
) -> list[Difference]:
    """Compares every customer's hours in [start, end), as far as the provider can have summed them. Raises
    DatabaseUnavailable, ProviderUnavailable, ProviderRefused.
    """
    end = min(end, (now - SUMMED_WITHIN).replace(minute=0, second=0, microsecond=0))
    if start >= end:
        return []
    async with database.read(EVERY_TENANT) as session:
        rows = await BooksRepository(session).metered(start, end)
    sent: dict[tuple[str, str], dict[datetime, int]] = {}
    for row in rows:
        hours = sent.setdefault((row.tenant_id, row.customer_id), {})
        if row.hour is not None:
            hours[row.hour] = row.value
    found: list[Difference] = []
    for (tenant_id, customer_id), hours in sent.items():
        metered = await gateway.metered_by_hour(customer_id, start, end)
        found += [
            Difference(
                "stripe",
                tenant_id,
                "micro-USD metered with the hour",
                hour,
                hours.get(hour, 0),
                metered.get(hour, 0),
            )
            for hour in sorted(hours.keys() | metered.keys())
            if hours.get(hour, 0) != metered.get(hour, 0)
        ]
    return found


async def compare_documents(
    database: Database, gateway: PaymentGateway, start: datetime, end: datetime, now: datetime
) -> list[Difference]:
    """Compares invoices issued in [start, end) and their credit notes with the provider: each is there with
    its amount, and payments there are recorded here. Raises DatabaseUnavailable, ProviderUnavailable,
    ProviderRefused.
    """
    async with database.read(EVERY_TENANT) as session:
        rows = await BooksRepository(session).documents(start, end)
    found: list[Difference] = []

    def differ(row: Any, what: str, expected: int, there: int) -> None:
        if expected != there:
            found.append(Difference("stripe_invoices", row.tenant_id, what, row.issued_at, expected, there))

    for row in rows:
        if row.state == "waived":
            continue
        if row.provider_id is None or row.state != "sent":
            late = row.state == "manual" or row.issued_at < now - SENT_WITHIN
            differ(row, f"cents of {row.id} not asked for: {row.error}", row.cents if late else 0, 0)
            continue
        there = await gateway.invoice(row.provider_id)
        differ(row, f"cents asked for by {row.id}", row.cents, there.total)
        differ(row, f"cents taken back of {row.id}", row.credited, there.credited)
        paid = there.amount_paid if there.status == "paid" else 0
        differ(row, f"cents paid for {row.id}", row.paid, paid)
    return found
