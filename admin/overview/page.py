"""Gathers the overview page: spend, usage, latency, adapters, and the first steps of a new tenant."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from adapters.catalogue import AdapterCatalogue, AdapterWithVersion
from admin import formatting
from admin.adapters.page import state_of
from admin.badge import Badge
from admin.charts import layout
from admin.charts.layout import COUNT, Chart, Point, Series, Spark
from admin.usage.labels import TIERS, May
from admin.usage.query import day_words, midnight
from billing.invoices.credits import CreditService
from billing.reports.slices import REQUEST, UsageRow, UsageSlices
from sla.service import RecentLevels, SlaReports
from telemetry.tasks import gather_all
from tenants.key_service import KeyService
from tenants.limits.kinds import Metric
from tenants.object_names import CALIBRATION_KEY
from tenants.quotas.service import LimitService
from tenants.refusals.service import RefusedRequests

DAYS = 30
MAX_ADAPTERS = 6


@dataclass(frozen=True, slots=True)
class Spending:
    month: str
    spent: int
    """Micro-USD, this month, charges among it."""
    limit: int | None
    """Of a month; None: there is none."""
    balance: int | None
    """What is paid in and not used; None: paid by invoice."""

    @property
    def share(self) -> int | None:
        """Per cent of the limit that is spent."""
        if self.limit is None:
            return None
        return 100 if not self.limit else min(100, round(100 * max(self.spent, 0) / self.limit))

    @property
    def is_near(self) -> bool:
        return (self.share or 0) >= 80 or (self.balance is not None and self.balance <= 0)


@dataclass(frozen=True, slots=True)
class Today:
    tokens: int
    requests: int
    token_line: Spark | None
    request_line: Spark | None
    """Of the last `DAYS` days."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    tier: str
    title: str
    first_token: str
    first_token_95: str
    rate: str
    requests: int
    failed: int


@dataclass(frozen=True, slots=True)
class Levels:
    """How requests were served within a day."""

    rows: list[ClassRow]
    requests: int
    failed: int

    @property
    def rate(self) -> str:
        if not self.requests:
            return formatting.NOTHING
        share = 100 * self.failed / self.requests
        return f"{share:.2f} %" if 0 < share < 10 else f"{share:.0f} %"


@dataclass(frozen=True, slots=True)
class AdapterRow:
    id: str
    name: str
    state: Badge
    version: int | None
    last_used: str
    tokens: int
    line: Spark | None


@dataclass(frozen=True, slots=True)
class Step:
    """Of getting started."""

    title: str
    text: str
    path: str
    is_done: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything the template shows; None: not for this visitor."""

    bases: list[str]
    steps: list[Step]
    """Empty when all are done, or requests came without."""
    today: Today
    chart: Chart
    spending: Spending | None
    levels: Levels | None
    refused: int | None
    """Calls that were refused within 24 hours."""
    refused_since: date
    """The first day of the list that has them."""
    adapters: list[AdapterRow] | None


@dataclass(frozen=True)
class OverviewPage:
    """Gathers the page from the services."""

    usage: UsageSlices
    levels: SlaReports
    catalogue: AdapterCatalogue
    keys: KeyService
    limits: LimitService
    credits: CreditService
    refused: RefusedRequests

    async def gather(self, tenant_id: str, may: May, today: date | None = None) -> Overview:
        """As of now. Raises DatabaseUnavailable."""
        today = today or datetime.now(UTC).date()
        first = min(today - timedelta(days=DAYS - 1), today.replace(day=1))
        (used, adapters), levels, spending, refused = await gather_all(
            self._used(tenant_id, may, first, today),
            self._levels(tenant_id, may),
            self._limits(tenant_id, may),
            self._num_refused(tenant_id, may),
        )
        is_used = any(one.requests for one in used) or await self.usage.is_used(tenant_id)
        by_day = {one.bucket.astimezone(UTC).date(): one for one in used if one.kind == REQUEST}
        days = [today - timedelta(days=DAYS - 1 - number) for number in range(DAYS)]
        return Overview(
            bases=list(self.catalogue.bases),
            steps=[] if is_used else _steps(may, bool(adapters), await self._has_key(tenant_id, may)),
            today=_today(by_day, days),
            chart=_chart(by_day, days, may),
            spending=None if spending is None else _spending(used, today, *spending),
            levels=levels,
            refused=refused,
            refused_since=today - timedelta(days=1),
            adapters=adapters,
        )

    async def _levels(self, tenant_id: str, may: May) -> Levels | None:
        if not may("limits.read"):
            return None
        found = await self.levels.recent(tenant_id)
        return Levels(
            [_class_row(one) for one in found],
            sum(one.requests for one in found),
            sum(one.failed for one in found),
        )

    async def _num_refused(self, tenant_id: str, may: May) -> int | None:
        return await self.refused.lately(tenant_id) if may("billing.read") else None

    async def _used(
        self, tenant_id: str, may: May, first: date, today: date
    ) -> tuple[list[UsageRow], list[AdapterRow] | None]:
        """Since `first`; and the adapters, with what was used of each in the last `DAYS` days."""
        sees = may("adapters.read")
        adapters = await self.catalogue.adapters(tenant_id, limit=MAX_ADAPTERS) if sees else []
        since = midnight(today - timedelta(days=DAYS - 1))
        ids = [one.adapter.id for one in adapters]
        whole, used = await self.usage.by_day(
            tenant_id, midnight(first), _end(today), ids, since, excluded_key_ids=(CALIBRATION_KEY,)
        )
        rows = [
            _adapter_row(one, [line for line in used if line.group == one.adapter.id], today)
            for one in adapters
        ]
        return whole, rows if sees else None

    async def _has_key(self, tenant_id: str, may: May) -> bool:
        return may("keys.read") and bool(await self.keys.list(tenant_id, kind="inference", limit=1))

    async def _limits(self, tenant_id: str, may: May) -> tuple[int | None, int | None] | None:
        """What may be spent in a month, and the balance, where there are such."""
        if not may("billing.read"):
            return None
        effective = await self.limits.effective(tenant_id)
        amounts = [
            limit.amount
            for limit in effective
            if limit.metric == Metric.SPEND_PER_MONTH and limit.scope == "tenant" and not limit.model
        ]
        # There is such a limit exactly while usage is paid from the balance.
        is_prepaid = any(limit.metric == Metric.PREPAID_BALANCE for limit in effective)
        balance = (await self.credits.balance(tenant_id)).amount if is_prepaid else None
        return (min(amounts) if amounts else None), balance


def _end(today: date) -> datetime:
    return midnight(today + timedelta(days=1))


def _spending(used: Sequence[UsageRow], today: date, limit: int | None, balance: int | None) -> Spending:
    begins = midnight(today.replace(day=1))
    spent = sum(one.cost for one in used if one.bucket >= begins)
    return Spending(calendar.month_name[today.month], spent, limit, balance)


def _today(by_day: dict[date, UsageRow], days: Sequence[date]) -> Today:
    tokens = [_tokens(by_day.get(day)) for day in days]
    requests = [0 if (used := by_day.get(day)) is None else used.requests for day in days]
    return Today(tokens[-1], requests[-1], layout.spark(tokens, "input"), layout.spark(requests, "output"))


def _tokens(used: UsageRow | None) -> int:
    return 0 if used is None else used.input_tokens + used.output_tokens


def _chart(by_day: dict[date, UsageRow], days: Sequence[date], may: May) -> Chart:
    def of(name: str) -> list[float]:
        return [0 if (used := by_day.get(day)) is None else getattr(used, name) for day in days]

    cached = of("cached_tokens")
    fresh = [whole - known for whole, known in zip(of("input_tokens"), cached, strict=True)]
    points = [
        Point(
            f"{day:%b} {day.day}",
            day_words(day),
            f"usage?range=days&from={day}&to={day}" if may("billing.read") else None,
        )
        for day in days
    ]
    series = [
        Series("Input", "input", fresh),
        Series("Cached input", "cached", cached),
        Series("Output", "output", of("output_tokens")),
    ]
    return layout.bars(f"Tokens by day, last {DAYS} days", points, series, COUNT)


def _class_row(lately: RecentLevels) -> ClassRow:
    half, most = lately.first_token
    rate = lately.output_rate
    return ClassRow(
        lately.tier.value,
        TIERS.get(lately.tier.value, lately.tier.value),
        formatting.seconds(half),
        formatting.seconds(most),
        formatting.NOTHING if rate is None else f"{rate:,.0f} tokens/s",
        lately.requests,
        lately.failed,
    )


def _adapter_row(found: AdapterWithVersion, used: Sequence[UsageRow], today: date) -> AdapterRow:
    by_day = {one.bucket.astimezone(UTC).date(): one for one in used if one.requests}
    tokens = [_tokens(by_day.get(today - timedelta(days=DAYS - 1 - number))) for number in range(DAYS)]
    return AdapterRow(
        found.adapter.id,
        found.adapter.name,
        state_of(found.adapter, found.version),
        found.adapter.active_version,
        _ago(max(by_day, default=None), today),
        sum(tokens),
        layout.spark(tokens, "input"),
    )


def _ago(day: date | None, today: date) -> str:
    if day is None:
        return f"Not in {DAYS} days"
    num_days = (today - day).days
    return "Today" if num_days <= 0 else "Yesterday" if num_days == 1 else f"{num_days} days ago"


def _steps(may: May, has_adapter: bool, has_key: bool) -> list[Step]:
    steps = []
    if may("adapters.write"):
        steps.append(
            Step(
                "Upload an adapter",
                "Upload the two files of a LoRA adapter. Inspection and calibration are automatic.",
                "/adapters/new",
                has_adapter,
            )
        )
    if may("keys.write"):
        steps.append(
            Step(
                "Create an API key",
                "Use it with any OpenAI client: only the base URL and the key change.",
                "/keys/new",
                has_key,
            )
        )
    if may("adapters.write"):
        steps.append(
            Step(
                "Send your first request",
                "Try your adapter in the playground and copy the code.",
                "/playground",
                False,
            )
        )
    return steps
