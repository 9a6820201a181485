"""Previews what the last complete month would have cost each tenant at other prices or on another plan.

Requests come from the daily rollups. Billing rounds up each request, which sums cannot reproduce, so a line
is exact to less than a micro-USD per request. A service tier pays the percentage of the tenant's current
plan, which may have been different then. Storage is computed again from what was stored; calibrations count
where they were charged. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from billing.charges import CALIBRATION, ChargeBook, storage_charges
from billing.models import Price, StoredAdapter
from billing.months import month_of, span
from billing.previews.repository import PricedSums
from billing.pricing import AMOUNTS, PriceVersion
from billing.rates import BATCH_TIER
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage
from tenants.tier_terms import read


@dataclass(frozen=True, slots=True)
class PreviewLine:
    """One tenant's costs before and after. Money is micro-USD."""

    tenant_id: str
    tenant_name: str
    requests: int
    before: int
    """What the month cost."""
    after: int

    @property
    def difference(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Preview:
    """The lines of all tenants with usage, the largest change first."""

    month: date
    lines: Sequence[PreviewLine]
    num_tenants: int
    """All that the prices or the plan are for, with usage or without."""

    @property
    def num_affected(self) -> int:
        """Returns how many tenants would have paid a different amount."""
        return sum(bool(line.difference) for line in self.lines)

    @property
    def before(self) -> int:
        return sum(line.before for line in self.lines)

    @property
    def after(self) -> int:
        return sum(line.after for line in self.lines)


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """The parts of a plan that decide what its tenants pay. Money is micro-USD."""

    percents: Mapping[str, int]
    """Percentages of the price, by service tier, and of batches."""
    monthly_fee: int
    included_usage: int

    def due(self, used: int) -> int:
        """Returns what is due for a month with usage worth `used`."""
        return self.monthly_fee + max(0, used - self.included_usage)


class PricePreviews:
    """Previews prices and plans, for the operator."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def preview(self, draft: PriceVersion, now: datetime) -> Preview:
        """Previews the last complete month at the prices of `draft`. Raises DatabaseUnavailable."""
        month = _last_month(now)
        start, end = span(month)
        async with self._database.read(EVERY_TENANT) as session:
            sums = PricedSums(session)
            used, charged = await sums.used(start, end), await sums.charged(start, end)
            plans = await sums.plans()
            stored = await ChargeBook(session).stored(start, end)
        names = {row.id: row.name for row in plans}
        percents = {row.id: _percents(row.terms, row.batch_price_percent) for row in plans}
        totals: dict[str, list[int]] = {}
        for row in used:
            percent = percents.get(row.tenant_id, {}).get(row.service_tier, 100)
            usage = Usage(int(row.prompt_tokens), int(row.cached_tokens), int(row.completion_tokens))
            cost = draft.rate(percent, row.on_adapter).cost(usage)
            _add(totals, row.tenant_id, int(row.num_requests), int(row.cost), cost)
        for row in charged:
            cost = int(row.quantity) * draft.calibration_job if row.kind == CALIBRATION else 0
            _add(totals, row.tenant_id, 0, int(row.cost), cost)
        for tenant_id, cost in _storage(stored, start, end, draft):
            _add(totals, tenant_id, 0, 0, cost)
        lines = [PreviewLine(tenant, names.get(tenant, tenant), *sums_) for tenant, sums_ in totals.items()]
        return Preview(month, _sorted(lines), len(plans))

    async def preview_plan(
        self, version: PriceVersion, plan_id: str, before: PlanCosts, after: PlanCosts, now: datetime
    ) -> Preview:
        """Previews the last complete month for the tenants on the plan now, at the prices of `version`: fee
        and usage, under the plan as it is and as it would be. Charges besides requests stay as they were.
        Raises DatabaseUnavailable.
        """
        month = _last_month(now)
        start, end = span(month)
        async with self._database.read(EVERY_TENANT) as session:
            sums = PricedSums(session)
            names = await sums.on_plan(plan_id)
            used, charged = await sums.used(start, end), await sums.charged(start, end)
        totals = {tenant_id: [0, 0, 0] for tenant_id in names}
        for row in used:
            if row.tenant_id in names:
                usage = Usage(int(row.prompt_tokens), int(row.cached_tokens), int(row.completion_tokens))
                costs = [
                    version.rate(plan.percents.get(row.service_tier, 100), row.on_adapter).cost(usage)
                    for plan in (before, after)
                ]
                _add(totals, row.tenant_id, int(row.num_requests), *costs)
        for row in charged:
            if row.tenant_id in names:
                _add(totals, row.tenant_id, 0, int(row.cost), int(row.cost))
        lines = [
            PreviewLine(tenant_id, names[tenant_id], requests, before.due(old), after.due(new))
            for tenant_id, (requests, old, new) in totals.items()
        ]
        return Preview(month, _sorted(lines), len(names))


def _last_month(now: datetime) -> date:
    this = month_of(now)
    return date(this.year - (this.month == 1), (this.month - 2) % 12 + 1, 1)


def _sorted(lines: list[PreviewLine]) -> list[PreviewLine]:
    """Returns the lines, the largest change first."""
    return sorted(lines, key=lambda line: (-abs(line.difference), line.tenant_name))


def _add(totals: dict[str, list[int]], tenant_id: str, requests: int, before: int, after: int) -> None:
    found = totals.setdefault(tenant_id, [0, 0, 0])
    found[0], found[1], found[2] = found[0] + requests, found[1] + before, found[2] + after


def _percents(terms: Mapping[str, Mapping[str, object]], batch: int) -> dict[str, int]:
    return {tier.value: found.price_percent for tier, found in read(terms).items()} | {BATCH_TIER: batch}


def _storage(
    stored: Sequence[StoredAdapter], start: datetime, end: datetime, draft: PriceVersion
) -> Iterator[tuple[str, int]]:
    """Yields (tenant_id, cost) by version and day, as it is charged."""
    if not draft.adapter_gb_day:
        return
    price = Price(id=draft.id, **{name: getattr(draft, name) for name in AMOUNTS})
    day = start
    while day < end:
        for due in storage_charges(stored, day, price):
            yield due.tenant_id, due.cost
        day += timedelta(days=1)
