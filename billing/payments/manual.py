"""Lists meter events and documents that need an operator, and lets the operator send or waive them.

An entry is here because the provider refused it, because it is too old, or because the sums do not tell
whether it arrived. Sent or waived, it counts as planned, so the books still add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from billing.payments.errors import ManualEntryNotFound
from billing.payments.gateway import PaymentGateway
from billing.payments.models import Document, MeterEvent
from billing.payments.repository import PaymentRecords, SendingQueue
from billing.rates import MICRO_USD_PER_CENT
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import OPERATOR
from tenants.audit.service import AuditLog


@dataclass(frozen=True, slots=True)
class ManualEntry:
    id: str
    """The event's identifier, or our document's id."""
    tenant_id: str
    hour: datetime | None
    """None for a document."""
    amount: int
    """Micro-USD, negative for a credit note."""
    why: str


class ManualQueue:
    """Settles the entries of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[ManualEntry]:
        """Returns all entries, events before documents, the oldest first. Raises DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            queue = SendingQueue(session)
            events = await queue.in_state(MeterEvent, "manual")
            documents = await queue.in_state(Document, "manual")
        return [
            *(ManualEntry(one.identifier, one.tenant_id, one.hour, one.value, one.error) for one in events),
            *(ManualEntry(one.id, one.tenant_id, None, _amount(one), one.error) for one in documents),
        ]

    async def send(self, entry_id: str, gateway: PaymentGateway, now: datetime) -> None:
        """Meters an event with the present time, or queues a document for the next round. Repeating it within
        a day changes nothing more.

        Raises ManualEntryNotFound, PaymentError, DatabaseUnavailable.
        """
        async with self._database.write(EVERY_TENANT) as session:
            row = await self._find(session, entry_id)
            if isinstance(row, Document):
                row.next_attempt_at = now
            else:
                account = await PaymentRecords(session).account(row.tenant_id)
                customer = account.stripe_customer_id or ""
                row.last_attempt_at = now
                row.first_attempt_at = row.first_attempt_at or now
                row.timestamp = now.replace(second=0, microsecond=0)
        if isinstance(row, Document):
            await self._settle(entry_id, "pending", now, "")
            return
        assert row.timestamp is not None
        await gateway.meter(customer, row.value, row.timestamp, row.identifier)
        await self._settle(entry_id, "sent", now, "")

    async def waive(self, entry_id: str, reason: str, now: datetime) -> None:
        """Closes an entry that was settled otherwise or is waived for the tenant. Raises ManualEntryNotFound,
        DatabaseUnavailable.
        """
        await self._settle(entry_id, "waived", now, reason)

    async def _settle(self, entry_id: str, state: str, now: datetime, reason: str) -> None:
        async with self._database.write(EVERY_TENANT) as session:
            row = await self._find(session, entry_id)
            row.state, row.settled_at, row.error = state, None if state == "pending" else now, reason
            kind = "meter_event" if isinstance(row, MeterEvent) else row.kind
            details = {"state": state, "reason": reason}
            await AuditLog.record(
                session, row.tenant_id, OPERATOR, f"{kind}.settled", (kind, entry_id), details
            )

    async def _find(self, session: WriteSession, entry_id: str) -> MeterEvent | Document:
        queue = SendingQueue(session)
        row: MeterEvent | Document | None = await queue.find_event(entry_id)
        if row is None:
            row = await session.get(Document, entry_id, with_for_update=True)
        if row is None or row.state != "manual":
            raise ManualEntryNotFound(entry_id)
        return row


def _amount(document: Document) -> int:
    return (document.cents if document.kind == "invoice" else -document.cents) * MICRO_USD_PER_CENT
