"""What the ledger has of a budget: for a count that Redis does not have, or has lost.

Owns the sums and what they cost by today's plan. They are of whole minutes and the ledger is a second behind,
so this is where a count begins, not how it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from billing.models import Price
from billing.pricing import Rate
from billing.repository import PriceList, UsageRepository
from db.session import Database
from engine.protocol import PriorityClass, Usage
from tenants.limits.kinds import Limit, Measure
from tenants.repository import TenantDirectory
from tenants.terms import Terms, read


class WindowUsage:
    """Call it as `tenants.quotas.Seed`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        """Of `limit`, since `start`. Raises DatabaseUnavailable."""
        end = datetime.now(UTC) + timedelta(minutes=1)
        async with self._database.read(tenant_id) as session:
            usage = UsageRepository(session, tenant_id)
            if limit.metric.measure != "spend":
                rows = await usage.since(start, end, limit)
                return sum(_amount(row, limit.metric.measure) for row in rows)
            plan = await TenantDirectory(session).plan_of(tenant_id)
            terms = read(plan.terms if plan is not None else {})
            spend = 0
            for first, last, price in _in_effect(await PriceList(session).versions(), start, end):
                spend += _spend(await usage.since(first, last, limit), price, terms)
        return spend


def _amount(row: Any, measure: Measure) -> int:
    amounts = {
        "requests": row.num_requests,
        "input_tokens": row.prompt_tokens,
        "output_tokens": row.completion_tokens,
        "tokens": row.prompt_tokens + row.completion_tokens,
    }
    return int(amounts[measure])


def _in_effect(
    versions: Sequence[Price], start: datetime, end: datetime
) -> list[tuple[datetime, datetime, Price]]:
    """The stretches of [start, end) and the price of each, to the minute. What was free is left out."""
    moments = [version.effective_from.replace(second=0, microsecond=0) for version in versions]
    stretches = pairwise([*moments, end])
    return [
        (max(first, start), min(last, end), version)
        for (first, last), version in zip(stretches, versions, strict=True)
        if max(first, start) < min(last, end)
    ]


def _spend(rows: Sequence[Any], price: Price, terms: Mapping[PriorityClass, Terms]) -> int:
    """Micro-USD. Each request's cost was rounded up by itself: that is one more for each, at most."""
    spend = 0
    for row in rows:
        known = row.service_tier in PriorityClass.__members__.values()
        tier = PriorityClass(row.service_tier) if known else PriorityClass.DEFAULT
        rate = Rate(price.id, price.input, price.cached_input, price.output, terms[tier].price_percent)
        cost = rate.cost(Usage(int(row.prompt_tokens), int(row.cached_tokens), int(row.completion_tokens)))
        spend += cost + (int(row.num_requests) if cost else 0)
    return spend
