"""Gathers the billing page: this month's cost and forecast, payment status, balance and plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from admin import formatting
from admin.amounts import read_dollars
from admin.badge import Badge
from admin.charts import layout
from admin.charts.layout import Chart, Point, Series
from admin.invoices.lines import LineGroup, exact, groups_of, rounded
from admin.invoices.page import cents, month_words
from admin.web.form_errors import FieldError
from billing.invoices.accounts import DETAILS, BillingAccountView
from billing.invoices.credits import Balance, CreditService
from billing.invoices.models import CreditEntry
from billing.invoices.views import InvoiceView
from billing.months import begin, following, month_of
from billing.payments.models import ProviderInvoice
from billing.payments.service import LEAST_TOP_UP, MOST_TOP_UP, PaymentService
from billing.rates import MICRO_USD_PER_CENT
from billing.statements import Statements
from tenants.tier_terms import MILLION, Terms
from tenants.views import PlanView

PAGE = 50
LATEST = 5
FIELDS = DETAILS
PACE_DAYS = 7
"""Whole days whose mean says what the rest of a month may cost."""
_DAY = 86_400
_STATES = {
    "active": Badge("Active", "good"),
    "grace": Badge("Payment overdue", "warn"),
    "suspended": Badge("Suspended", "bad"),
}
_KINDS = {
    "top_up": "Top-up",
    "grant": "Granted credit",
    "credit_note": "Credit note",
    "kept": "Remainder of an invoice",
    "applied": "Applied to an invoice",
    "refund": "Refund",
    "expiry": "Expired",
}
_CLASSES = {"priority": "Priority", "default": "Default", "flex": "Flex"}


@dataclass(frozen=True)
class Owed:
    """An open invoice at the payment provider."""

    period: str
    remaining: str
    state: Badge


@dataclass(frozen=True)
class CreditRow:
    kind: str
    at: datetime
    amount: str
    is_taken: bool
    reason: str
    invoice_id: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class CreditList:
    rows: list[CreditRow]
    next_after: str | None


@dataclass(frozen=True)
class ClassTerms:
    title: str
    price: str
    promises: list[str]


@dataclass(frozen=True)
class Forecast:
    total: int
    """Micro-USD."""
    note: str


@dataclass(frozen=True)
class Billing:
    """Everything the template shows."""

    month: str
    month_id: str
    so_far: str
    forecast: str | None
    """None: it is too early to say."""
    forecast_note: str
    lines: list[LineGroup]
    total: str
    exact_total: str
    chart: Chart
    is_prepaid: bool
    balance: str
    is_balance_low: bool
    is_balance_empty: bool
    balance_note: str
    credits: list[CreditRow]
    state: Badge
    owed: list[Owed]
    provider: str | None
    """The payment provider; None: payments are not collected automatically."""
    is_sandbox: bool
    details: list[tuple[str, str]]
    fee: str
    included: str | None
    classes: list[ClassTerms]


class BillingPage:
    """Gathers the pages."""

    def __init__(self, statements: Statements, credits: CreditService, payments: PaymentService) -> None:
        self._statements = statements
        self._credits = credits
        self._payments = payments

    async def gather(self, tenant_id: str, tenant_name: str, plan: PlanView, root: str) -> Billing:
        """`root`: what links of charts begin with. Raises DatabaseUnavailable."""
        now = datetime.now(UTC)
        month = month_of(now)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        since = min(today - timedelta(days=PACE_DAYS), begin(month))
        found = await self._statements.of(tenant_id, now=now, since=since, num_credits=LATEST)
        preview, days, account, balance = found.preview, found.days, found.account, found.balance
        live = self._payments.live
        own = days[-now.day :]
        used = sum(cost for _, cost in own)
        rest = rest_of_month(days, now)
        expected = None if rest is None else _expected(preview, used, rest, plan)
        is_prepaid = account.mode == "prepaid"
        return Billing(
            month=month_words(month),
            month_id=f"{month:%Y-%m}",
            so_far=formatting.usd(used if is_prepaid else preview.total),
            forecast=None if expected is None or rest is None else formatting.usd_roughly(
                used + rest if is_prepaid else expected
            ),
            forecast_note=f"Based on the last {PACE_DAYS} days",
            lines=groups_of(preview.lines),
            total=rounded(preview.total),
            exact_total=exact(preview.total),
            chart=_chart(own, month, root),
            is_prepaid=is_prepaid,
            balance=formatting.usd(balance.amount),
            is_balance_low=is_prepaid and balance.amount <= 0,
            is_balance_empty=balance.amount <= 0,
            balance_note=_balance_note(balance, days, is_prepaid),
            credits=[_credit(entry) for entry in found.credits],
            state=_STATES.get(account.state, Badge(account.state, "off")),
            owed=[_owed(one) for one in found.owed],
            provider=None if live is None else "Stripe",
            is_sandbox=live is False,
            details=_details(account, tenant_name),
            fee=formatting.usd(plan.monthly_fee),
            included=formatting.usd(plan.included_usage) if plan.included_usage else None,
            classes=_classes(plan),
        )  # fmt: skip

    async def credits(self, tenant_id: str, after: str | None) -> CreditList:
        """The ledger of the balance, the newest first. Raises DatabaseUnavailable."""
        found = await self._credits.list(tenant_id, after=after, limit=PAGE + 1)
        shown = found[:PAGE]
        return CreditList([_credit(entry) for entry in shown], shown[-1].id if len(found) > PAGE else None)

    async def balance(self, tenant_id: str) -> Balance:
        """Raises DatabaseUnavailable."""
        return await self._credits.balance(tenant_id)


def read_details(form: Mapping[str, str]) -> dict[str, str]:
    """What the form has of the account's details."""
    found = {name: form.get(name, "").replace("\r\n", "\n") for name in DETAILS}
    return found | {"country": found["country"].strip().upper()}


def read_top_up(form: Mapping[str, str]) -> int:
    """Cents. Raises Refused."""
    found, rest = divmod(read_dollars(form.get("amount", ""), "amount"), MICRO_USD_PER_CENT)
    if rest:
        raise FieldError("amount", "Enter whole cents.")
    if not LEAST_TOP_UP <= found <= MOST_TOP_UP:
        raise FieldError("amount", f"Enter an amount from {cents(LEAST_TOP_UP)} to {cents(MOST_TOP_UP)}.")
    return found


def details_of(account: BillingAccountView) -> dict[str, str]:
    """As the form has them."""
    return {name: getattr(account, name) for name in DETAILS}


def rest_of_month(days: Sequence[tuple[date, int]], now: datetime) -> int | None:
    """Micro-USD that the rest of the month costs at the pace of the last whole days, those without use before
    the first with any left out; None before a whole day was used.
    """
    whole = [cost for _, cost in days[:-1]][-PACE_DAYS:]
    while whole and not whole[0]:
        whole.pop(0)
    if not whole:
        return None
    end = begin(following(month_of(now)))
    left = (end - now).total_seconds() / _DAY
    return max(0, round(sum(whole) / len(whole) * left))


def _expected(preview: InvoiceView, used: int, rest: int, plan: PlanView) -> int:
    """Micro-USD of the invoice, if the rest costs so much: what the plan still includes comes first."""
    covered = -sum(line.amount for line in preview.lines if line.kind == "allowance")
    return preview.total + max(0, rest - max(0, plan.included_usage - covered))


def _balance_note(balance: Balance, days: Sequence[tuple[date, int]], is_prepaid: bool) -> str:
    if not is_prepaid:
        return "Applied to your next invoice" if balance.amount > 0 else "No credit available"
    if balance.amount <= 0:
        return "Requests are rejected until you top up"
    pace = [cost for _, cost in days[:-1]][-PACE_DAYS:]
    daily = sum(pace) / len(pace) if pace else 0
    if daily <= 0:
        return "Deducted as you use models"
    lasts = balance.amount / daily
    return f"Lasts about {round(lasts)} days at the current pace" if lasts < 400 else "Lasts more than a year"


def _chart(days: Sequence[tuple[date, int]], month: date, root: str) -> Chart:
    """A bar for every day of the month: those to come are empty, so that what is over is seen as part of
    it.
    """
    costs = dict(days)
    last = (following(month) - timedelta(days=1)).day
    every = [month.replace(day=number) for number in range(1, last + 1)]
    points = [
        Point(
            f"{day.day}",
            f"{day:%A, %d %B}",
            f"{root}/usage?range=days&from={day.isoformat()}&to={day.isoformat()}&show=cost"
            if day in costs
            else None,
        )
        for day in every
    ]
    values = [costs.get(day) for day in every]
    return layout.bars(
        f"Cost by day, {month_words(month)}", points, [Series("Cost", "input", values)], layout.USD
    )


def _credit(entry: CreditEntry) -> CreditRow:
    return CreditRow(
        _KINDS.get(entry.kind, entry.kind),
        entry.at,
        formatting.usd(entry.amount),
        entry.amount < 0,
        entry.reason,
        entry.invoice_id,
        entry.expires_at,
    )


def _owed(invoice: ProviderInvoice) -> Owed:
    failed = invoice.failing_since is not None
    return Owed(
        f"{invoice.period_start.astimezone(UTC):%Y-%m-%d} to {invoice.period_end.astimezone(UTC):%Y-%m-%d}",
        cents(invoice.amount_remaining),
        Badge("Payment failed", "bad") if failed else Badge("Open", "warn"),
    )


def _details(account: BillingAccountView, tenant_name: str) -> list[tuple[str, str]]:
    return [
        ("Name", account.name or tenant_name),
        ("Address", account.address or formatting.NOTHING),
        ("Country", account.country or formatting.NOTHING),
        ("Tax ID", account.tax_id or formatting.NOTHING),
        ("Billing email", account.email or formatting.NOTHING),
    ]


def _classes(plan: PlanView) -> list[ClassTerms]:
    return [
        ClassTerms(_CLASSES.get(tier, tier), _price(terms), _promises(terms))
        for tier, terms in plan.terms.items()
        if terms.allowed
    ]


def _price(terms: Terms) -> str:
    if terms.price_percent == 100:
        return "List price"
    return f"{terms.price_percent} % of list price"


def _promises(terms: Terms) -> list[str]:
    found = []
    if terms.availability_ppm:
        found.append(f"{_share(terms.availability_ppm)} availability")
    if terms.output_rate_ppm and terms.min_output_tokens_per_second:
        rate = terms.min_output_tokens_per_second
        found.append(f"{_share(terms.output_rate_ppm)} of responses at {rate} tokens/s or more")
    if terms.contracted_tokens_per_minute is not None:
        found.append(f"Up to {terms.contracted_tokens_per_minute:,} tokens per minute")
    found.append(f"Target time to first token: {terms.ttft_target_ms:,} ms")
    if terms.credits:
        most = max(percent for _, percent in terms.credits)
        found.append(f"Credit of up to {most} % if missed")
    return found


def _share(ppm: int) -> str:
    return f"{ppm * 100 / MILLION:.4f}".rstrip("0").rstrip(".") + " %"
