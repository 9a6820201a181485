"""Queries the counts of service levels and the tenants' terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Subquery,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from db.repository import TenantRepository, select_owned
from engine.protocol import PriorityClass
from sla.granularity import (
    GRANULARITIES,
    MINUTE,
    add_shares,
    range_bounds,
    select_range,
    select_shares,
    share_bounds,
)
from sla.measures import FIRST_TOKEN_EDGES, OUTPUT_RATE_EDGES, Counts
from sla.models import PlanTerms, SlaBatch, SlaMinute, TenantPlan

SUMS = ("requests", "failed", "first_tokens", "first_tokens_in_time", "rated", "rated_fast")
HISTOGRAMS = {
    "first_token_histogram": len(FIRST_TOKEN_EDGES) + 1,
    "output_rate_histogram": len(OUTPUT_RATE_EDGES) + 1,
}
"""The number of buckets of each histogram."""

_WRITTEN = ", ".join((*SUMS, *HISTOGRAMS))
_ADDED = ", ".join(
    [f"{name} = stored.{name} + excluded.{name}" for name in SUMS]
    + [
        f"{name} = ARRAY(SELECT a + b FROM unnest(stored.{name}, excluded.{name}) "
        "WITH ORDINALITY AS t(a, b, place) ORDER BY place)"
        for name in HISTOGRAMS
    ]
)
_MERGES = {
    granularity.unit: text(f"""
INSERT INTO {granularity.table} AS stored (tenant_id, service_tier, {granularity.unit}, {_WRITTEN})
SELECT tenant_id, service_tier, at, {_WRITTEN} FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given(
    tenant_id text, service_tier text, at timestamptz,
    {", ".join(f"{name} bigint" for name in SUMS)}, {", ".join(f"{name} bigint[]" for name in HISTOGRAMS)})
ORDER BY tenant_id, service_tier, at
ON CONFLICT (tenant_id, service_tier, {granularity.unit}) DO UPDATE SET {_ADDED}
""")
    for granularity in GRANULARITIES
}

SUMMED = {
    name: f"ARRAY[{', '.join(f'sum({name}[{place}])' for place in range(1, length + 1))}]::bigint[]"
    for name, length in HISTOGRAMS.items()
}
"""SQL that adds up each histogram, with a sum for every bucket."""
# Text built once: as expressions, building them would take longer than the query.
_SUMMED: list[ColumnElement[Any]] = [
    literal_column(expression, ARRAY(BigInteger)).label(name) for name, expression in SUMMED.items()
]


def _by_class(rows: Subquery) -> Select[*tuple[Any, ...]]:
    """Each bucket is a sum of its own, because unnesting the arrays and aggregating them again takes twelve
    times as long.
    """
    columns = [func.sum(rows.c[name]) for name in SUMS]
    return select(rows.c.service_tier, *columns, *_SUMMED).group_by(rows.c.service_tier)


def _counts(rows: Iterable[Any]) -> dict[str, Counts]:
    """Returns the counts by service tier."""
    found: dict[str, Counts] = {}
    for tier, *sums in rows:
        counts = found[tier] = Counts()
        for name, number in zip((*SUMS, *HISTOGRAMS), sums, strict=True):
            setattr(counts, name, number if name in HISTOGRAMS else int(number))
    return found


_TOTALS = _by_class(select_range(select_owned, ("service_tier", *SUMS, *HISTOGRAMS)))
_LATEST = _by_class(
    union_all(
        *(
            select(
                select_owned(SlaMinute)
                .where(SlaMinute.service_tier == tier.value, SlaMinute.minute >= bindparam("since"))
                .order_by(SlaMinute.minute.desc())
                .limit(bindparam("num_minutes", type_=Integer))
                .subquery()
            )
            for tier in PriorityClass
        )
    ).subquery()
)

Place = tuple[str, str, datetime]
"""(tenant, service tier, minute)."""


class SlaWriter:
    """Writes every tenant's minutes, hours and days, and the batches counted in them."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def claim(self, batches: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
        """Marks the batches as counted in this transaction; returns those that were not counted before."""
        if not batches:
            return set()
        rows = [{"source": source, "number": number} for source, number in sorted(set(batches))]
        statement = insert(SlaBatch).values(rows).on_conflict_do_nothing()
        claimed = await self.session.execute(statement.returning(SlaBatch.source, SlaBatch.number))
        return {(row.source, row.number) for row in claimed}

    async def add(self, counts: dict[Place, Counts]) -> None:
        """Adds counts to the minutes, hours and days. Rows are in a fixed order, the finer units before the
        coarser, so that two writers never deadlock.
        """
        for granularity in GRANULARITIES:
            if not counts:
                return
            if granularity is not MINUTE:
                finer, counts = counts, {}
                for (tenant_id, tier, at), found in finer.items():
                    counts.setdefault((tenant_id, tier, granularity.floor(at)), Counts()).add(found)
            rows = [
                {"tenant_id": tenant_id, "service_tier": tier, "at": at.isoformat()}
                | {name: getattr(found, name) for name in (*SUMS, *HISTOGRAMS)}
                for (tenant_id, tier, at), found in counts.items()
            ]
            await self.session.execute(
                _MERGES[granularity.unit], {"rows": msgspec.json.encode(rows).decode()}
            )

    async def forget_batches(self, age: timedelta) -> int:
        """Deletes batches that are no longer sent again; returns how many."""
        gone = delete(SlaBatch).where(SlaBatch.counted_at < func.now() - age).returning(SlaBatch.number)
        return len((await self.session.execute(gone)).all())

    async def ensure_partitions(self, first_month: date, num_months: int) -> int:
        """Creates the monthly partitions from `first_month` on; returns how many were missing."""
        statement = text("SELECT ensure_sla_partitions(CAST(:first AS date), :months)")
        return (
            await self.session.execute(statement, {"first": first_month, "months": num_months})
        ).scalar_one()


@dataclass(frozen=True, slots=True)
class TermsPeriod:
    """Terms of a plan, and the period in which they applied."""

    plan: str
    terms: dict[str, Any]
    """The terms as stored with the plan."""
    start: datetime
    end: datetime


_FAILURES = text("""
SELECT tenant_id, CAST(sum(requests) AS bigint), CAST(sum(failed) AS bigint)
FROM sla_days WHERE tenant_id = ANY(CAST(:tenants AS text[])) AND day >= :since
GROUP BY tenant_id
""")


class CrossTenantCounts:
    """Queries the counts of several tenants. The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def failures(self, tenant_ids: Sequence[str], since: datetime) -> Sequence[Any]:
        """Returns (tenant_id, requests, failed) of the UTC days from `since` on; tenants without requests
        are left out.
        """
        values = {"tenants": list(tenant_ids), "since": since}
        return (await self.session.execute(_FAILURES, values)).all()


class SlaRepository(TenantRepository):
    """Queries one tenant's counts and terms."""

    async def terms_between(self, start: datetime, end: datetime) -> list[TermsPeriod]:
        """Returns the tenant's terms within [start, end), in order, without gaps. The first known terms also
        stand for the time before. The list is empty if there is no such tenant.
        """
        after = func.lead(TenantPlan.since).over(order_by=TenantPlan.since).label("until")
        plans = self.select_own(TenantPlan).add_columns(after).subquery()
        plan, start_of = PlanTerms.plan_id, PlanTerms.since
        before = func.lag(start_of).over(partition_by=plan, order_by=start_of)
        terms = select(
            PlanTerms.plan_id,
            PlanTerms.name,
            PlanTerms.terms,
            case((before.is_(None), text("timestamptz '-infinity'")), else_=PlanTerms.since).label("since"),
            func.lead(start_of).over(partition_by=plan, order_by=start_of).label("until"),
        ).subquery()
        since = func.greatest(plans.c.since, terms.c.since)
        query = (
            select(since.label("since"), terms.c.name, terms.c.terms)
            .join_from(plans, terms, terms.c.plan_id == plans.c.plan_id)
            .where(or_(plans.c.until.is_(None), terms.c.since < plans.c.until))
            .where(or_(terms.c.until.is_(None), terms.c.until > plans.c.since))
            .order_by("since")
        )
        rows = (await self.session.execute(query)).all()
        found = []
        for place, row in enumerate(rows):
            begin = start if place == 0 else max(start, row.since)
            until = min(end, rows[place + 1].since) if place + 1 < len(rows) else end
            if begin < until:
                found.append(TermsPeriod(row.name, row.terms, begin, until))
        return found

    async def totals(self, start: datetime, end: datetime) -> dict[str, Counts]:
        """Returns the sums over [start, end) by service tier with any requests."""
        return _counts(await self.execute_own(_TOTALS, **range_bounds(start, end)))

    async def latest(self, since: datetime, num_minutes: int) -> dict[str, Counts]:
        """Returns, by service tier, the sums over the last `num_minutes` minutes that had any requests of it,
        none before `since`.
        """
        return _counts(await self.execute_own(_LATEST, since=since, num_minutes=num_minutes))

    async def shares(self, since: Sequence[datetime], until: datetime) -> list[dict[str, tuple[int, int]]]:
        """Returns (requests, failed) by service tier from each start up to `until`."""
        if not since:
            return []
        statement = select_shares(select_owned, len(since))
        return add_shares(await self.execute_own(statement, **share_bounds(since, until)), len(since))
