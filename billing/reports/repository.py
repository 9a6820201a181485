"""Queries what reports need besides sums: pages of ledger rows, rows of one request or slice, the values of a
slice, and the operator's margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Select,
    bindparam,
    cast,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from billing.models import FAILED, Charge, Reversal, UsageRecord, UsageRollupDay, UsageRollupHour
from billing.repository import INSTANT, bounds
from billing.rollups import KEYS, ROLLUPS
from db.repository import TenantRepository, select_owned
from db.rollup_intervals import Unit, intervals

Outcome = Literal["succeeded", "failed"]
# As literals, by which PostgreSQL sees that it can use the index of failed requests.
_OUTCOMES = {
    "succeeded": literal_column("finish_reason = ANY (ARRAY['stop', 'length'])", Boolean),
    "failed": literal_column(FAILED, Boolean),
}
Place = tuple[datetime, str]
"""A row's position in the ledger's order: its time, and its id among rows of the same time."""


def reversed_reasoning_tokens() -> ColumnElement[int]:
    """Builds the column of the reasoning tokens that a `Reversal` takes back; 0 if it is of a charge."""
    of_request = select(UsageRecord.reasoning_tokens).where(
        UsageRecord.tenant_id == Reversal.tenant_id,
        UsageRecord.submitted_at == Reversal.submitted_at,
        UsageRecord.request_id == Reversal.request_id,
    )
    return func.coalesce(of_request.correlate(Reversal).scalar_subquery(), 0)


class LedgerRows(TenantRepository):
    """Queries one tenant's rows."""

    async def page(
        self,
        model: type[Any],
        columns: Sequence[Any],
        at: Any,
        name: Any,
        start: datetime,
        end: datetime,
        after: Place | None,
        limit: int,
        wanted: Mapping[str, Sequence[str]],
    ) -> Sequence[Any]:
        """Returns `columns` of rows of `model` in [start, end), the oldest first, after a position, whose
        columns are `at` and `name`. `wanted` lists the values that count, by column.
        """
        query = self.select_own(model, *columns).where(
            at >= (start if after is None else after[0]),
            at < end,
            *(is_among(getattr(model, column), values) for column, values in wanted.items()),
        )
        if after is not None:
            query = query.where(tuple_(at, name) > tuple_(*after))
        return (await self.session.execute(query.order_by(at, name).limit(limit))).all()

    async def of_request(
        self, request_id: str, submitted_from: datetime, submitted_to: datetime
    ) -> Sequence[UsageRecord]:
        """Returns the rows of a request submitted between the two, inclusive: its own, or one for each prompt
        of its list.
        """
        query = self.select_own(UsageRecord).where(
            UsageRecord.submitted_at.between(submitted_from, submitted_to),
            or_(
                UsageRecord.request_id == request_id,
                UsageRecord.request_id.startswith(f"{request_id}-", autoescape=True),
            ),
        )
        return (await self.session.execute(query.order_by(UsageRecord.request_id))).scalars().all()

    async def reversals_of(self, records: Sequence[UsageRecord]) -> Sequence[Reversal]:
        keys = [(record.submitted_at, record.request_id) for record in records]
        query = self.select_own(Reversal).where(tuple_(Reversal.submitted_at, Reversal.request_id).in_(keys))
        return (await self.session.execute(query)).scalars().all()


class SliceRepository(LedgerRows):
    """Queries one tenant's slices."""

    async def values(self, start: datetime, end: datetime) -> dict[str, list[tuple[str, int]]]:
        """Returns, by key column, each value in [start, end) with its number of requests, the most frequent
        first.
        """
        found: dict[str, list[tuple[str, int]]] = {name: [] for name in KEYS}
        time_intervals = intervals(start, end)
        if not time_intervals:
            return found
        statement = _values(tuple(interval.unit for interval in time_intervals))
        for *values, number in (await self.execute_own(statement, **bounds(time_intervals))).all():
            # In a grouping set all keys but its own are NULL, and its own never is.
            name, value = next(pair for pair in zip(KEYS, values, strict=True) if pair[1] is not None)
            found[name].append((value, number))
        return found

    async def is_used(self) -> bool:
        query = self.select_own(UsageRollupDay, UsageRollupDay.day).limit(1)
        return (await self.session.execute(query)).first() is not None

    async def hours(
        self,
        start: datetime,
        end: datetime,
        wanted: Mapping[str, Sequence[str]],
        limit: int,
        excluded_key_ids: Sequence[str] = (),
    ) -> list[datetime]:
        """Returns hours that overlap [start, end) and have anything of the slice, the latest first."""
        hour = UsageRollupHour.hour
        query = self.select_own(UsageRollupHour, hour).where(
            hour > start - timedelta(hours=1),
            hour < end,
            *(getattr(UsageRollupHour, name).in_(values) for name, values in wanted.items()),
        )
        if excluded_key_ids:
            query = query.where(UsageRollupHour.key_id.not_in(excluded_key_ids))
        query = query.group_by(hour).order_by(hour.desc()).limit(limit)
        return list((await self.session.execute(query)).scalars())

    async def requests(
        self,
        start: datetime,
        end: datetime,
        wanted: Mapping[str, Sequence[str]],
        hours: Sequence[datetime] | None,
        before: Place | None,
        limit: int,
        excluded_key_ids: Sequence[str] = (),
        outcome: Outcome | None = None,
    ) -> Sequence[UsageRecord]:
        """Returns rows of the slice submitted in [start, end), the latest first, from below `before`. With
        `hours`, only rows in these hours.
        """
        at = UsageRecord.submitted_at
        query = self.select_own(UsageRecord).where(
            at >= start,
            at < end,
            *(is_among(getattr(UsageRecord, name), values) for name, values in wanted.items()),
        )
        if excluded_key_ids:
            query = query.where(UsageRecord.key_id.not_in(excluded_key_ids))
        if outcome is not None:
            query = query.where(_OUTCOMES[outcome])
        if before is not None:
            query = query.where(tuple_(at, UsageRecord.request_id) < tuple_(*before))
        query = query.order_by(at.desc(), UsageRecord.request_id.desc()).limit(limit)
        if hours is not None:
            if not hours:
                return []
            hour = select(
                func.unnest(bindparam("hours", list(hours), ARRAY(INSTANT))).label("hour")
            ).subquery()
            within = query.where(at >= hour.c.hour, at < hour.c.hour + timedelta(hours=1)).lateral()
            row = aliased(UsageRecord, within)
            query = select(row).select_from(hour.join(within, true()))
            query = query.order_by(row.submitted_at.desc(), row.request_id.desc()).limit(limit)
        return (await self.session.execute(query)).scalars().all()


@lru_cache(maxsize=64)
def _values(interval_units: tuple[Unit, ...]) -> Select[Any]:
    """Returns the statement of `SliceRepository.values` over intervals of these units.

    Rows that are alike in all keys are added up first: many days have few of them, and each is then counted
    once for every key.
    """
    parts = []
    for number, interval_unit in enumerate(interval_units):
        rollup: Any = ROLLUPS[interval_unit]
        at, keys = getattr(rollup, interval_unit), [getattr(rollup, name) for name in KEYS]
        sums = select_owned(rollup, *keys, func.sum(rollup.num_requests).label("num_requests"))
        within = (at >= bindparam(f"start_{number}"), at < bindparam(f"end_{number}"))
        parts.append(sums.where(*within).group_by(*keys))
    rows = union_all(*parts).subquery("rows")
    keys = [rows.c[name] for name in KEYS]
    requests = cast(func.sum(rows.c.num_requests), BigInteger).label("requests")
    sets = func.grouping_sets(*(tuple_(key) for key in keys))
    return select(*keys, requests).group_by(sets).order_by(requests.desc(), *keys)


def is_among(column: Any, values: Sequence[str]) -> ColumnElement[bool]:
    """Matches the values. What is an empty text in the sums is NULL in the rows."""
    found: ColumnElement[bool] = column.in_([value for value in values if value])
    return or_(found, column.is_(None), column == "") if "" in values else found


# The union of the times in which a request was on its engine: each row adds what exceeds the rows before it.
# A request submitted up to an hour before `start` may still run then.
_RUNS = """
    WITH runs AS (
        SELECT engine_id, tenant_id, service_tier, coalesce(adapter_id, '') AS adapter_id,
               greatest(submitted_at + make_interval(secs => queue_seconds), :start) AS begins,
               least(submitted_at + make_interval(secs => total_seconds), :end) AS ends
        FROM usage_records
        WHERE submitted_at >= CAST(:start AS timestamptz) - interval '1 hour' AND submitted_at < :end
            AND queue_seconds IS NOT NULL AND total_seconds > queue_seconds
    )
"""
_BUSY = text(
    _RUNS
    + """
    , ordered AS (
        SELECT engine_id, begins, ends,
               max(ends) OVER (PARTITION BY engine_id ORDER BY begins, ends
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until
        FROM runs WHERE ends > begins
    )
    SELECT engine_id,
           CAST(sum(extract(epoch FROM ends - greatest(begins, least(coalesce(until, begins), ends))))
                * 1000000 AS bigint) AS microseconds
    FROM ordered GROUP BY 1 ORDER BY 1
    """
)
_HELD = text(
    _RUNS
    + """
    SELECT tenant_id, service_tier, adapter_id,
           CAST(sum(extract(epoch FROM ends - begins)) * 1000000 AS bigint) AS microseconds
    FROM runs WHERE ends > begins GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    """
)


class OperatorLedger:
    """Queries all tenants' ledger over [start, end), for the operator."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def busy(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (engine_id, microseconds): how long any request ran on each engine."""
        return (await self.session.execute(_BUSY, {"start": start, "end": end})).all()

    async def held(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, service_tier, adapter_id, microseconds): the total running time of
        requests. `adapter_id` is empty for those on a base model.
        """
        return (await self.session.execute(_HELD, {"start": start, "end": end})).all()

    async def used(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, service_tier, num_requests, prompt_tokens, cached_tokens,
        completion_tokens, cost) of whole UTC days.
        """
        day = UsageRollupDay
        sums = (day.num_requests, day.prompt_tokens, day.cached_tokens, day.completion_tokens, day.cost)
        query = (
            select(day.tenant_id, day.service_tier, *(func.sum(column).label(column.key) for column in sums))
            .where(day.day >= start, day.day < end)
            .group_by(day.tenant_id, day.service_tier)
        )
        return (await self.session.execute(query)).all()

    async def used_by_adapter(self, start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, adapter_id, model, num_requests, prompt_tokens, completion_tokens, cost)
        of whole UTC days. `model` is one of those that requests named.
        """
        day = UsageRollupDay
        sums = (day.num_requests, day.prompt_tokens, day.completion_tokens, day.cost)
        query = (
            select(
                day.tenant_id,
                day.adapter_id,
                func.max(day.model).label("model"),
                *(func.sum(column).label(column.key) for column in sums),
            )
            .where(day.day >= start, day.day < end)
            .group_by(day.tenant_id, day.adapter_id)
        )
        return (await self.session.execute(query)).all()

    async def charged(self, start: datetime, end: datetime) -> dict[str, int]:
        """Returns micro-USD of charges besides requests, less reversed ones, by tenant."""
        costs: dict[str, int] = {}
        for model, sign, condition in (
            (Charge, 1, Charge.cost > 0),
            (Reversal, -1, Reversal.charge_id.is_not(None)),
        ):
            query = (
                select(model.tenant_id, func.sum(model.cost))
                .where(model.at >= start, model.at < end, condition)
                .group_by(model.tenant_id)
            )
            for tenant_id, cost in (await self.session.execute(query)).all():
                costs[tenant_id] = costs.get(tenant_id, 0) + sign * int(cost)
        return costs
