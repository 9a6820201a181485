"""Queries on accounts, credits and invoices. What is only ever added to has no query that changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Date,
    Row,
    Text,
    any_,
    bindparam,
    cast,
    func,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.invoices.models import (
    BillingAccount,
    ClosedMonth,
    CreditEntry,
    CreditNote,
    Invoice,
    InvoiceLine,
    InvoicePayment,
    PrepaidPeriod,
)
from billing.models import Charge, Reversal, UsageRecord, UsageRollupDay
from billing.months import begin, following
from billing.repository import INSTANT
from db.cursors import fetch_page
from db.repository import TenantRepository, owner, select_owned
from tenants.models import Plan, Tenant
from tenants.repository import is_id

LEDGER_KINDS = ("usage", "storage", "calibration")
"""Kinds of lines that stand for rows of the ledger."""

_NEXT_NUMBER = text("UPDATE document_numbers SET last = last + 1 WHERE kind = :kind RETURNING last")


_CREDITS = func.coalesce(func.sum(CreditEntry.amount), 0)
_LATEST = select_owned(Invoice, Invoice.id).order_by(Invoice.month.desc()).limit(1).scalar_subquery()
_STANDING = (
    select(
        Tenant,
        Plan,
        BillingAccount,
        Invoice,
        select_owned(CreditEntry, _CREDITS).scalar_subquery(),
        select(func.max(ClosedMonth.month)).scalar_subquery(),
        select_owned(PrepaidPeriod, PrepaidPeriod.since).exists(),
    )
    .outerjoin(Plan, Plan.id == Tenant.plan_id)
    .outerjoin(BillingAccount, BillingAccount.tenant_id == Tenant.id)
    .outerjoin(Invoice, Invoice.id == _LATEST)
    .where(Tenant.id == owner())
)


def _month(at: Any) -> ColumnElement[date]:
    return cast(func.date_trunc("month", func.timezone("UTC", at)), Date).label("month")


def _unsettled() -> Any:
    end = bindparam("end", type_=INSTANT)
    # Added up by day first: to say which month it is in costs more of a row than the rest.
    used = select_owned(UsageRollupDay, UsageRollupDay.day, func.sum(UsageRollupDay.cost).label("cost"))
    days = used.where(UsageRollupDay.day < end).group_by(UsageRollupDay.day).subquery()
    ledger = (
        select(_month(days.c.day), days.c.cost.label("amount")),
        select_owned(Charge, _month(Charge.at), Charge.cost).where(Charge.at < end),
        select_owned(Reversal, _month(Reversal.at), -Reversal.cost).where(
            Reversal.at < end, Reversal.charge_id.is_not(None)
        ),
    )
    invoiced = select_owned(InvoiceLine, InvoiceLine.month, -InvoiceLine.amount).where(
        InvoiceLine.kind.in_(LEDGER_KINDS), InvoiceLine.month < bindparam("before", type_=Date)
    )
    rows = union_all(*ledger, invoiced).subquery()
    query = select(rows.c.month).group_by(rows.c.month).having(func.sum(rows.c.amount) != 0)
    return query.order_by(rows.c.month)


_UNSETTLED = _unsettled()
_LINES_FOR = select_owned(InvoiceLine).where(
    InvoiceLine.month == bindparam("month", type_=Date), InvoiceLine.kind.in_((*LEDGER_KINDS, "prepaid"))
)
_OF_INVOICES = any_(bindparam("ids", type_=ARRAY(Text)))
_NOTES = select_owned(CreditNote).where(CreditNote.invoice_id == _OF_INVOICES).order_by(CreditNote.number)
_PAYMENTS = (
    select_owned(InvoicePayment).where(InvoicePayment.invoice_id == _OF_INVOICES).order_by(InvoicePayment.id)
)
_PERIODS = select_owned(PrepaidPeriod).order_by(PrepaidPeriod.since)
_PLANS_THEN = text(
    """
    SELECT spans.month,
        plans.name AS name_now, plans.monthly_fee AS fee_now, plans.included_usage AS usage_now,
        past.name, past.monthly_fee, past.included_usage
    FROM unnest(CAST(:months AS date[]), CAST(:ends AS timestamptz[])) AS spans (month, until)
    JOIN tenants ON tenants.id = :tenant
    LEFT JOIN LATERAL (
        SELECT plan_id FROM tenant_plans WHERE tenant_id = :tenant AND since < spans.until
        ORDER BY since DESC LIMIT 1
    ) AS was ON true
    JOIN plans ON plans.id = coalesce(was.plan_id, tenants.plan_id)
    LEFT JOIN LATERAL (
        SELECT name, monthly_fee, included_usage FROM plan_fees
        WHERE plan_id = plans.id AND since < spans.until ORDER BY since DESC LIMIT 1
    ) AS past ON true
    """
).bindparams(bindparam("months", type_=ARRAY(Date)), bindparam("ends", type_=ARRAY(INSTANT)))


@dataclass(frozen=True, slots=True)
class InvoicingContext:
    """What is known of a tenant before its bill is made."""

    tenant: Tenant
    plan: Plan | None
    account: BillingAccount | None
    latest: Invoice | None
    """That of the last month."""
    credits: int
    """See `AccountRepository.credits_sum`."""
    last_closed: date | None
    was_prepaid: bool
    """Whether usage is, or ever was, paid from the balance."""


@dataclass(frozen=True, slots=True)
class PlanThen:
    """What a tenant's plan was called and cost when a month ended. Money is micro-USD."""

    name: str
    monthly_fee: int
    included_usage: int


class AccountRepository(TenantRepository):
    """One tenant's account and its money. Who decides by the balance holds the account first."""

    async def standing(self) -> InvoicingContext | None:
        """None where there is no such tenant."""
        found: Any = (await self.execute_own(_STANDING)).one_or_none()
        if found is None:
            return None
        tenant, plan, account, latest, credits_sum, last_closed, was_prepaid = found
        return InvoicingContext(tenant, plan, account, latest, int(credits_sum), last_closed, was_prepaid)

    async def plans_then(self, months: Sequence[date]) -> dict[date, PlanThen]:
        """By month, as they were when it ended; of months that nothing was written down of, as they are."""
        values = {"months": months, "ends": [begin(following(month)) for month in months]}
        rows = await self.session.execute(_PLANS_THEN, {"tenant": self.tenant_id, **values})
        return {
            row.month: PlanThen(row.name_now, row.fee_now, row.usage_now)
            if row.name is None
            else PlanThen(row.name, row.monthly_fee, row.included_usage)
            for row in rows
        }

    async def find(self) -> BillingAccount | None:
        return (await self.session.execute(self.select_own(BillingAccount))).scalar_one_or_none()

    async def hold(self) -> BillingAccount:
        """The account, made if there is none, held against others until the transaction ends."""
        missing = insert(BillingAccount).values(tenant_id=self.tenant_id).on_conflict_do_nothing()
        await self.session.execute(missing)
        query = self.select_own(BillingAccount).with_for_update()
        query = query.execution_options(populate_existing=True)
        return (await self.session.execute(query)).scalar_one()

    async def periods(self) -> list[PrepaidPeriod]:
        """In which usage is paid from the balance, the earliest first."""
        return list((await self.execute_own(_PERIODS)).scalars())

    async def credit(self, kind: str, reference: str) -> CreditEntry | None:
        query = self.select_own(CreditEntry).where(
            CreditEntry.kind == kind, CreditEntry.reference == reference
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def credits_sum(self) -> int:
        """Micro-USD put into the balance less what was taken out; what prepaid usage draws not counted."""
        query = self.select_own(CreditEntry, _CREDITS)
        return int((await self.session.execute(query)).scalar_one())

    async def credits(
        self, *, after: str | None = None, limit: int = 100, newest_first: bool = True
    ) -> list[CreditEntry]:
        listed = self.select_own(CreditEntry)
        page = await fetch_page(
            self.session, listed, CreditEntry.id, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.scalars())

    async def taken_since(self, moment: datetime) -> int:
        """Micro-USD that entries made since took out of the balance, but for those that expired."""
        query = self.select_own(CreditEntry, func.coalesce(-func.sum(CreditEntry.amount), 0)).where(
            CreditEntry.at >= moment, CreditEntry.kind.in_(("applied", "refund"))
        )
        return int((await self.session.execute(query)).scalar_one())


class InvoiceRepository(TenantRepository):
    """One tenant's invoices and their corrections."""

    async def find(self, invoice_id: str) -> Invoice | None:
        if not is_id(invoice_id):
            return None
        query = self.select_own(Invoice).where(Invoice.id == invoice_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def of_month(self, month: date) -> Invoice | None:
        query = self.select_own(Invoice).where(Invoice.month == month)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def latest(self) -> Invoice | None:
        """That of the last month."""
        query = self.select_own(Invoice).order_by(Invoice.month.desc()).limit(1)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self, *, after: str | None = None, limit: int = 100, newest_first: bool = True
    ) -> list[Invoice]:
        listed = self.select_own(Invoice)
        page = await fetch_page(
            self.session, listed, Invoice.id, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.scalars())

    async def lines(self, invoice_ids: Sequence[str]) -> list[InvoiceLine]:
        query = (
            self.select_own(InvoiceLine)
            .where(InvoiceLine.invoice_id.in_(invoice_ids))
            .order_by(InvoiceLine.invoice_id, InvoiceLine.number)
        )
        return list((await self.session.execute(query)).scalars())

    async def lines_for(self, month: date) -> list[InvoiceLine]:
        """Lines of all invoices for what was used in a month."""
        return list((await self.execute_own(_LINES_FOR, month=month)).scalars())

    async def unsettled(self, before: date) -> list[date]:
        """Months before that whose ledger is not what was invoiced of it, the earliest first."""
        found = await self.execute_own(_UNSETTLED, end=begin(before), before=before)
        return list(found.scalars())

    async def priced_anew(self, start: datetime, end: datetime) -> list[Row[*tuple[Any, ...]]]:
        """Rows (model, service_tier, prompt_tokens, cached_tokens, completion_tokens, cost, cached_cost,
        output_cost) of the ledger's requests in [start, end), each row's cost computed again from its counts
        and the prices it carries; less what was reversed then.
        """
        record, taken = UsageRecord, Reversal
        prices = (record.input_price, record.cached_input_price, record.output_price)
        counts = (record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        percent = record.price_percent
        costs = (
            func.usage_cost(*counts, *prices, percent),
            func.usage_cost_share(record.cached_tokens, record.cached_input_price, percent),
            func.usage_cost_share(record.completion_tokens, record.output_price, percent),
        )
        names = (*(count.key for count in counts), "cost", "cached_cost", "output_cost")
        used = self.select_own(
            record,
            record.model,
            record.service_tier,
            *(column.label(name) for column, name in zip((*counts, *costs), names, strict=True)),
        ).where(record.submitted_at >= start, record.submitted_at < end)
        reversed_ = self.select_own(
            taken,
            taken.model,
            taken.service_tier,
            *((-getattr(taken, name)).label(name) for name in names),
        ).where(taken.at >= start, taken.at < end, taken.request_id.is_not(None))
        rows = union_all(used, reversed_).subquery()
        sums = (cast(func.sum(rows.c[name]), BigInteger).label(name) for name in names)
        query = select(rows.c.model, rows.c.service_tier, *sums).group_by(rows.c.model, rows.c.service_tier)
        return list((await self.session.execute(query)).all())

    async def notes(self, invoice_ids: Sequence[str]) -> list[CreditNote]:
        found = await self.execute_own(_NOTES, ids=list(invoice_ids))
        return list(found.scalars())

    async def payments(self, invoice_ids: Sequence[str]) -> list[InvoicePayment]:
        found = await self.execute_own(_PAYMENTS, ids=list(invoice_ids))
        return list(found.scalars())

    async def payment(self, kind: str, reference: str) -> InvoicePayment | None:
        query = self.select_own(InvoicePayment).where(
            InvoicePayment.kind == kind, InvoicePayment.reference == reference
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def next_number(self, kind: str) -> int:
        """The number after the last. Others wait for it until this transaction ends: ask late."""
        return int((await self.session.execute(_NEXT_NUMBER, {"kind": kind})).scalar_one())


class MonthRepository:
    """Which months are closed, and whose bills there are to make: no one tenant's."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def last_closed(self) -> date | None:
        return (await self.session.execute(select(func.max(ClosedMonth.month)))).scalar_one_or_none()

    async def earliest(self) -> datetime | None:
        """When the first tenant came, or the first thing was used."""
        moments = (
            select(func.min(Tenant.created_at)),
            select(func.min(UsageRollupDay.day)),
            select(func.min(Charge.at)),
        )
        found = [(await self.session.execute(query)).scalar_one_or_none() for query in moments]
        return min((moment for moment in found if moment is not None), default=None)

    async def close(self, month: date, closed_at: datetime, num_invoices: int) -> None:
        """Again changes nothing."""
        values = {"month": month, "closed_at": closed_at, "num_invoices": num_invoices}
        await self.session.execute(insert(ClosedMonth).values(values).on_conflict_do_nothing())

    async def num_invoices(self, month: date) -> int:
        query = select(func.count()).select_from(Invoice).where(Invoice.month == month)
        return int((await self.session.execute(query)).scalar_one())

    async def owner(self, invoice_id: str) -> str | None:
        """Whose an invoice is."""
        query = select(Invoice.tenant_id).where(Invoice.id == invoice_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def numbers(self) -> Row[int, int, int]:
        """(first, last, how many) numbers of invoices there are."""
        query = select(func.min(Invoice.number), func.max(Invoice.number), func.count())
        return (await self.session.execute(query.select_from(Invoice))).one()

    async def expired(self, since: datetime, now: datetime) -> list[CreditEntry]:
        """Credits that ended in between, of which nothing was taken back yet."""
        taken = select(CreditEntry.reference).where(CreditEntry.kind == "expiry").scalar_subquery()
        query = select(CreditEntry).where(
            CreditEntry.expires_at > since, CreditEntry.expires_at <= now, CreditEntry.id.not_in(taken)
        )
        return list((await self.session.execute(query.order_by(CreditEntry.id))).scalars())
