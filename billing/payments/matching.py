"""What the provider collected, noted on our own invoices: of each month the payment that came for it.

The provider's invoice may be paid before ours is there: so this is asked again and again, and notes each
payment once.
"""

from __future__ import annotations

from datetime import datetime

from billing.invoices.service import record_payment
from billing.notifications.events import PAYMENT_SUCCEEDED
from billing.notifications.publishing import tell
from billing.payments.repository import PaymentRecords
from billing.rates import MICRO_USD_PER_CENT
from db.session import EVERY_TENANT, Database


async def match_payments(database: Database, now: datetime, *, limit: int = 1000) -> int:
    """Note payments that no invoice has yet; how many. Raises DatabaseUnavailable."""
    async with database.read(EVERY_TENANT) as session:
        unmatched = await PaymentRecords(session).unmatched(limit)
    for paid, invoice_id in unmatched:
        async with database.write(EVERY_TENANT) as session:
            await record_payment(
                session, paid.tenant_id, invoice_id, "payment", paid.amount_paid, paid.id, at=now
            )
            told = {"invoice_id": invoice_id, "amount_micro_usd": paid.amount_paid * MICRO_USD_PER_CENT}
            await tell(session, paid.tenant_id, PAYMENT_SUCCEEDED, told, key=f"paid:{paid.id}", now=now)
    return len(unmatched)
