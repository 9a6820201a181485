"""Queries billing accounts, credits and invoices. Append-only tables have no query that changes them."""

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
    case,
    cast,
    func,
    literal,
    or_,
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
from billing.models import Charge, Reversal, ShareEarning, UsageRecord, UsageRollupDay
from billing.months import begin, following
from billing.repository import INSTANT
from db.cursors import fetch_page
from db.repository import TenantRepository, owner, select_owned
from tenants.models import Plan, Tenant
from tenants.repository import is_id

LEDGER_KINDS = ("usage", "storage", "calibration", "earnings")
"""The kinds of lines that come from the ledger."""

_NEXT_NUMBER = text("UPDATE document_numbers SET last = last + 1 WHERE kind = :kind RETURNING last")


_CREDITS = func.coalesce(func.sum(CreditEntry.amount), 0)
_LATEST = select_owned(Invoice, Invoice.id).order_by(Invoice.month.desc()).limit(1).scalar_subquery()
_CONTEXT = (
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
    # Summed by day first, because computing a row's month costs more than all else.
    used = select_owned(UsageRollupDay, UsageRollupDay.day, func.sum(UsageRollupDay.cost).label("cost"))
    days = used.where(UsageRollupDay.day < end).group_by(UsageRollupDay.day).subquery()
    ledger = (
        select(_month(days.c.day), days.c.cost.label("amount")),
        select_owned(Charge, _month(Charge.at), Charge.cost).where(Charge.at < end),
        select_owned(Reversal, _month(Reversal.at), -Reversal.cost).where(
            Reversal.at < end, Reversal.charge_id.is_not(None)
        ),
    )
    earned = select_owned(ShareEarning, _month(ShareEarning.day), literal(0), -ShareEarning.owner_part).where(
        ShareEarning.day < end
    )
    is_earned = InvoiceLine.kind == "earnings"
    invoiced = select_owned(
        InvoiceLine,
        InvoiceLine.month,
        case((is_earned, 0), else_=-InvoiceLine.amount),
        case((is_earned, -InvoiceLine.amount), else_=0),
    ).where(InvoiceLine.kind.in_(LEDGER_KINDS), InvoiceLine.month < bindparam("before", type_=Date))
    rows = union_all(*(query.add_columns(literal(0).label("earned")) for query in ledger), earned, invoiced)
    found = rows.subquery()
    # Apart: late usage and late earnings of the same amount are two lines, not none.
    differs = or_(func.sum(found.c.amount) != 0, func.sum(found.c.earned) != 0)
    return select(found.c.month).group_by(found.c.month).having(differs).order_by(found.c.month)


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
_PAST_PLANS = text(
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
    """What a tenant's bill needs besides its usage."""

    tenant: Tenant
    plan: Plan | None
    account: BillingAccount | None
    latest: Invoice | None
    """The invoice of the latest month."""
    credits: int
    """See `AccountRepository.credits_sum`."""
    last_closed: date | None
    was_prepaid: bool
    """Whether usage is, or ever was, paid from the balance."""


@dataclass(frozen=True, slots=True)
class PastPlan:
    """The name and fees of a tenant's plan when a month ended. Money is micro-USD."""

    name: str
    monthly_fee: int
    included_usage: int


class AccountRepository(TenantRepository):
    """Queries one tenant's account and balance. To decide by the balance, hold the account first."""

    async def invoicing_context(self) -> InvoicingContext | None:
        """Returns the context of a bill; None if there is no such tenant."""
        found: Any = (await self.execute_own(_CONTEXT)).one_or_none()
        if found is None:
            return None
        tenant, plan, account, latest, credits_sum, last_closed, was_prepaid = found
        return InvoicingContext(tenant, plan, account, latest, int(credits_sum), last_closed, was_prepaid)

    async def past_plans(self, months: Sequence[date]) -> dict[date, PastPlan]:
        """Returns the plan of each month when it ended; the current one where no record exists."""
        values = {"months": months, "ends": [begin(following(month)) for month in months]}
        rows = await self.session.execute(_PAST_PLANS, {"tenant": self.tenant_id, **values})
        return {
            row.month: PastPlan(row.name_now, row.fee_now, row.usage_now)
            if row.name is None
            else PastPlan(row.name, row.monthly_fee, row.included_usage)
            for row in rows
        }

    async def find(self) -> BillingAccount | None:
        return (await self.session.execute(self.select_own(BillingAccount))).scalar_one_or_none()

    async def hold(self) -> BillingAccount:
        """Returns the account, created if missing, locked until the transaction ends."""
        missing = insert(BillingAccount).values(tenant_id=self.tenant_id).on_conflict_do_nothing()
        await self.session.execute(missing)
        query = self.select_own(BillingAccount).with_for_update()
        query = query.execution_options(populate_existing=True)
        return (await self.session.execute(query)).scalar_one()

    async def periods(self) -> list[PrepaidPeriod]:
        """Returns the prepaid periods, the earliest first."""
        return list((await self.execute_own(_PERIODS)).scalars())

    async def credit(self, kind: str, reference: str) -> CreditEntry | None:
        query = self.select_own(CreditEntry).where(
            CreditEntry.kind == kind, CreditEntry.reference == reference
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def credits_sum(self) -> int:
        """Returns micro-USD put into the balance less what was taken out, without prepaid usage."""
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
        """Returns micro-USD that entries since then took out of the balance, without expired credits."""
        query = self.select_own(CreditEntry, func.coalesce(-func.sum(CreditEntry.amount), 0)).where(
            CreditEntry.at >= moment, CreditEntry.kind.in_(("applied", "refund"))
        )
        return int((await self.session.execute(query)).scalar_one())


class InvoiceRepository(TenantRepository):
    """Queries one tenant's invoices and their corrections."""

    async def find(self, invoice_id: str) -> Invoice | None:
        if not is_id(invoice_id):
            return None
        query = self.select_own(Invoice).where(Invoice.id == invoice_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def of_month(self, month: date) -> Invoice | None:
        query = self.select_own(Invoice).where(Invoice.month == month)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def latest(self) -> Invoice | None:
        """Returns the invoice of the latest month."""
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
        """Returns the lines of all invoices for usage of a month."""
        return list((await self.execute_own(_LINES_FOR, month=month)).scalars())

    async def unsettled(self, before: date) -> list[date]:
        """Returns months before then whose ledger differs from what was invoiced, the earliest first."""
        found = await self.execute_own(_UNSETTLED, end=begin(before), before=before)
        return list(found.scalars())

    async def repriced(self, start: datetime, end: datetime) -> list[Row[*tuple[Any, ...]]]:
        """Returns rows (model, service_tier, prompt_tokens, cached_tokens, completion_tokens, cost,
        cached_cost, output_cost, surcharge) of the ledger's requests in [start, end), less reversals. Each
        row's cost is computed again from its counts and the prices it carries.
        """
        record, taken = UsageRecord, Reversal
        prices = (record.input_price, record.cached_input_price, record.output_price)
        counts = (record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        percent = record.price_percent
        surcharge = func.usage_surcharge(
            record.prompt_tokens,
            record.completion_tokens,
            record.share_input_price,
            record.share_output_price,
        )
        costs = (
            func.usage_cost(*counts, *prices, percent) + surcharge,
            func.usage_cost_share(record.cached_tokens, record.cached_input_price, percent),
            func.usage_cost_share(record.completion_tokens, record.output_price, percent),
            surcharge,
        )
        names = (*(count.key for count in counts), "cost", "cached_cost", "output_cost", "surcharge")
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
        """Returns the next number. Other transactions wait for this one to end, so call it late."""
        return int((await self.session.execute(_NEXT_NUMBER, {"kind": kind})).scalar_one())


class MonthRepository:
    """Queries closed months and the invoices of all tenants."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def last_closed(self) -> date | None:
        return (await self.session.execute(select(func.max(ClosedMonth.month)))).scalar_one_or_none()

    async def earliest(self) -> datetime | None:
        """Returns when the first tenant was created or the first usage was recorded."""
        moments = (
            select(func.min(Tenant.created_at)),
            select(func.min(UsageRollupDay.day)),
            select(func.min(Charge.at)),
        )
        found = [(await self.session.execute(query)).scalar_one_or_none() for query in moments]
        return min((moment for moment in found if moment is not None), default=None)

    async def close(self, month: date, closed_at: datetime, num_invoices: int) -> None:
        """Marks a month as closed. Repeating it changes nothing."""
        values = {"month": month, "closed_at": closed_at, "num_invoices": num_invoices}
        await self.session.execute(insert(ClosedMonth).values(values).on_conflict_do_nothing())

    async def num_invoices(self, month: date) -> int:
        query = select(func.count()).select_from(Invoice).where(Invoice.month == month)
        return int((await self.session.execute(query)).scalar_one())

    async def owner(self, invoice_id: str) -> str | None:
        """Returns the id of the invoice's tenant."""
        query = select(Invoice.tenant_id).where(Invoice.id == invoice_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def numbers(self) -> Row[int, int, int]:
        """Returns the first, the last and the number of invoice numbers."""
        query = select(func.min(Invoice.number), func.max(Invoice.number), func.count())
        return (await self.session.execute(query.select_from(Invoice))).one()

    async def expired(self, since: datetime, now: datetime) -> list[CreditEntry]:
        """Returns credits that expired in between and of which nothing was taken back yet."""
        taken = select(CreditEntry.reference).where(CreditEntry.kind == "expiry").scalar_subquery()
        query = select(CreditEntry).where(
            CreditEntry.expires_at > since, CreditEntry.expires_at <= now, CreditEntry.id.not_in(taken)
        )
        return list((await self.session.execute(query.order_by(CreditEntry.id))).scalars())
