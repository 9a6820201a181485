"""A business to bill: tenants, a ledger where a token costs a micro-USD, and a clock one tells."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.folding import measure
from billing.invoices.accounts import BillingAccounts
from billing.invoices.closing import Closed, MonthClose
from billing.invoices.credits import CreditService
from billing.invoices.ledger import MonthLedger
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.invoices.views import InvoiceView
from billing.months import begin
from billing.rates import Rate
from billing.repository import LedgerWriter
from billing.totals import LedgerTotals
from db.base import new_id
from db.session import EVERY_TENANT, Database
from engine.protocol import PriorityClass
from tenants.models import Tenant
from tests.support.journal import usage_event
from tests.support.ledger import forget_ledger

MICRO_A_TOKEN = Rate("prc_test", 10**6, 10**6, 10**6)
TABLES = ("invoice_payments", "credit_notes", "credits", "invoice_lines", "invoices", "closed_months")
SEPTEMBER, OCTOBER, NOVEMBER, DECEMBER = (date(2026, month, 1) for month in (9, 10, 11, 12))


def at(month: date, day: int = 10, hour: int = 12, minute: int = 0) -> datetime:
    return datetime(month.year, month.month, day, hour, minute, tzinfo=UTC)


class Business:
    """One operator's. `use` spends micro-USD, exactly."""

    def __init__(
        self, database: Database, redis_client: redis.asyncio.Redis, settings: InvoiceSettings
    ) -> None:
        self.database = database
        self.redis = redis_client
        self._settings = settings
        self.credits = CreditService(database, redis_client)
        self.accounts = BillingAccounts(database, redis_client)
        self.oldest: datetime | None = None
        self._serial = itertools.count()
        self.charge_at_least(0)

    def charge_at_least(self, cents: int) -> None:
        """From now on nobody is asked for less."""
        self.invoices = InvoiceService(self.database, self.redis, self._settings, minimum_cents=cents)
        self.months = MonthClose(self.database, self.invoices, self.oldest_entry)

    async def oldest_entry(self) -> datetime | None:
        return self.oldest

    async def tenant(self, name: str = "acme", since: datetime = begin(SEPTEMBER)) -> Tenant:
        made = Tenant(id=new_id("tnt"), name=name, created_at=since)
        async with self.database.write(made.id) as session:
            session.add(made)
        return made

    async def use(
        self,
        tenant_id: str,
        when: datetime,
        prompt: int,
        *,
        cached: int = 0,
        completion: int = 0,
        model: str = "sapling",
        rate: Rate = MICRO_A_TOKEN,
        tier: str = "default",
    ) -> str:
        """A request that ended; its id."""
        request_id = f"req-{tenant_id}-{next(self._serial)}"
        submitted = when.timestamp()
        event = usage_event(
            request_id,
            prompt,
            completion,
            cached,
            tenant=tenant_id,
            submitted_at=submitted,
            recorded_at=submitted + 2,
            finished_at=submitted + 1,
            finish_reason="stop",
            priority=PriorityClass(tier),
            labels={"key_id": "key_1", "model": model, "service_tier": tier} | rate.labels,
        )
        async with self.database.write(EVERY_TENANT) as session:
            await LedgerWriter(session).upsert([measure(event)])
        return request_id

    async def close(self, now: datetime) -> Closed:
        return await self.months.close_due(now)

    async def invoice(self, tenant_id: str, month: date) -> InvoiceView:
        found = {one.month: one for one in await self.invoices.list(tenant_id)}
        return found[month]

    async def spent(self, tenant_id: str) -> int:
        """All the ledger has."""
        async with self.database.read(tenant_id) as session:
            start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
            return await MonthLedger(session, tenant_id).total(start, end)

    async def spent_between(self, tenant_id: str, start: datetime, end: datetime) -> int:
        async with self.database.read(tenant_id) as session:
            lines = await LedgerTotals(session, tenant_id).costs(start, end)
            return sum(line.cost for line in lines)

    async def set_plan(self, tenant_id: str, fee: int, included: int) -> None:
        async with self.database.write(EVERY_TENANT) as session:
            await session.execute(
                text(
                    "INSERT INTO plans (id, name, monthly_fee, included_usage) VALUES ('p', 'team', :f, :i)"
                    " ON CONFLICT DO NOTHING"
                ),
                {"f": fee, "i": included},
            )
            await session.execute(text("UPDATE tenants SET plan_id = 'p' WHERE id = :id"), {"id": tenant_id})


@pytest.fixture
async def business(database: Database, redis_client: redis.asyncio.Redis) -> Business:
    return Business(database, redis_client, InvoiceSettings(seller_name="Acorn Serving Ltd"))


async def forget_bills(owner_database: Database) -> None:
    """As if nobody had ever been billed, or used anything."""
    async with owner_database.write(EVERY_TENANT) as session:
        for table in TABLES:
            await session.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        await session.execute(text(f"TRUNCATE {', '.join(TABLES)}, prepaid_periods, billing_accounts"))
        await session.execute(text("UPDATE document_numbers SET last = 0"))
        for table in TABLES:
            await session.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
        await session.execute(text("TRUNCATE tenants CASCADE"))
    await forget_ledger(owner_database)
