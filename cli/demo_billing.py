"""Bills the demo's first tenant for last month's plan fee, so that its console shows a paid invoice.

The invoice is made and paid like every other: the month is closed, the payment provider collects, and its
answer is recorded. No usage is invented and nothing is written into the ledger.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cli.service_access import Services


async def bill_last_month(services: Services, tenant_id: str) -> None:
    """Bills last month; again changes nothing. On the first of a month there is no invoice yet: months are
    closed on the second.
    """
    from billing.invoices.closing import JournalAge, MonthClose
    from cli.invoices import invoice_service

    now = datetime.now(UTC)
    await _come_last_month(services, tenant_id, now)
    close = MonthClose(services.database, invoice_service(services), JournalAge(services.redis))
    if (await close.close_due(now)).months:
        await _collect(services, now)


async def _collect(services: Services, now: datetime) -> None:
    """Collects the payment at once instead of with the worker's next round, so that the invoice shows as
    paid.
    """
    from billing.payments.rounds import PaymentRounds
    from billing.stripe_gateway import StripeGateway  # a second to load
    from cli.stripe import stripe_settings

    settings = stripe_settings(services)
    gateway = StripeGateway(settings)
    try:
        rounds = PaymentRounds(services.database, services.redis, gateway, settings)
        await rounds.meter(now)
        await rounds.check_payments(now)
    finally:
        await gateway.close()


async def _come_last_month(services: Services, tenant_id: str, now: datetime) -> None:
    from billing.months import begin, month_of
    from db.session import EVERY_TENANT
    from tenants.models import Tenant

    this_month = begin(month_of(now))
    async with services.database.write(EVERY_TENANT) as session:
        tenant = await session.get(Tenant, tenant_id)
        assert tenant is not None
        if tenant.created_at >= this_month:
            tenant.created_at = begin(month_of(this_month - timedelta(days=1)))
