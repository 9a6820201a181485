"""Records what the provider collected as payments on our own invoices.

The provider's invoice may be paid before ours is final, so this runs repeatedly and records each payment
once.
"""

from __future__ import annotations

from datetime import datetime

from billing.invoices.service import record_payment
from billing.notifications.events import PAYMENT_SUCCEEDED
from billing.notifications.publishing import publish
from billing.payments.repository import PaymentRecords
from billing.rates import MICRO_USD_PER_CENT
from db.session import EVERY_TENANT, Database


async def match_payments(database: Database, now: datetime, *, limit: int = 1000) -> int:
    """Records payments that no invoice has yet; returns how many. Raises DatabaseUnavailable."""
    async with database.read(EVERY_TENANT) as session:
        unmatched = await PaymentRecords(session).unmatched(limit)
    for paid, invoice_id in unmatched:
        async with database.write(EVERY_TENANT) as session:
            await record_payment(
                session, paid.tenant_id, invoice_id, "payment", paid.amount_paid, paid.id, at=now
            )
            facts = {"invoice_id": invoice_id, "amount_micro_usd": paid.amount_paid * MICRO_USD_PER_CENT}
            await publish(session, paid.tenant_id, PAYMENT_SUCCEEDED, facts, key=f"paid:{paid.id}", now=now)
    return len(unmatched)
