"""Queries the ledger: writes records with their rollups, and sums the rollups of one tenant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Date,
    DateTime,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncSession

from billing.folding import Measured
from billing.models import Charge, Price, Reversal, RollupSums, UsageRecord, UsageRollupDay
from billing.rollups import ROLLUPS, SUMS, add_sql, earn_sql, hold_ledger
from db.repository import TenantRepository, select_owned
from db.rollup_intervals import Interval, Unit, intervals
from tenants.limits.kinds import Limit, Scope
from tenants.limits.models import LimitRow
from tenants.models import ApiKey

_SAME = (
    "tenant_id, key_id, model, adapter_id, adapter_version, adapter_digest, endpoint, service_tier, "
    "num_choices, engine_id, project_id, user_id, price_id, input_price, cached_input_price, output_price, "
    "price_percent, owner_id, share_id, share_input_price, share_output_price, owner_percent"
)
_GROWING = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "preemptions", "recorded_at",
    "finish_reason", "queue_seconds", "first_token_seconds", "total_seconds",
)  # fmt: skip


def _greatest(column: str) -> str:
    # Byte order, whatever the database's collation: Python's max compares text the same way.
    collation = ' COLLATE "C"' if column == "finish_reason" else ""
    return f"{column} = GREATEST(stored.{column}{collation}, excluded.{column}{collation})"


# The difference between a request's new row and its stored one is what the rollups grow by.
_ADDED = tuple(name for name in SUMS if name not in ("num_requests", "cost"))
_DIFFERENCES = ", ".join(
    [
        "a.cost + a.surcharge - coalesce(b.cost + b.surcharge, 0) AS cost",
        *(f"a.{name} - coalesce(b.{name}, 0) AS {name}" for name in (*_ADDED, "owner_part")),
    ]
)
_STORED = ", ".join(f"r.{name}" for name in (*_ADDED, "cost", "owner_part"))
_UPSERT = text(
    f"""
    WITH incoming AS (
        SELECT to_timestamp(x.submitted_at) AS submitted_at, to_timestamp(x.recorded_at) AS recorded_at,
               request_id, {_SAME}, {", ".join(name for name in _GROWING if name != "recorded_at")}
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(
            request_id text, submitted_at double precision, tenant_id text, key_id text, model text,
            adapter_id text, adapter_version integer, adapter_digest text, endpoint text, service_tier text,
            num_choices integer, engine_id text, project_id text, user_id text, price_id text,
            input_price bigint, cached_input_price bigint, output_price bigint, price_percent integer,
            owner_id text, share_id text, share_input_price bigint, share_output_price bigint,
            owner_percent integer,
            prompt_tokens bigint, cached_tokens bigint,
            completion_tokens bigint, reasoning_tokens bigint, preemptions integer,
            recorded_at double precision, finish_reason text,
            queue_seconds double precision, first_token_seconds double precision,
            total_seconds double precision)
    ), before AS (
        SELECT r.submitted_at, r.request_id, {_STORED}
        FROM usage_records r JOIN incoming i USING (submitted_at, request_id)
        WHERE r.submitted_at BETWEEN to_timestamp(:earliest) AND to_timestamp(:latest)
    ), after AS (
        INSERT INTO usage_records AS stored (submitted_at, request_id, {_SAME}, {", ".join(_GROWING)})
        SELECT submitted_at, request_id, {_SAME}, {", ".join(_GROWING)} FROM incoming
        ON CONFLICT (submitted_at, request_id) DO UPDATE SET {", ".join(map(_greatest, _GROWING))}
        RETURNING *
    ), changes AS (
        SELECT a.tenant_id, a.submitted_at AS at, a.key_id, a.model, a.service_tier,
               coalesce(a.project_id, '') AS project_id, coalesce(a.user_id, '') AS user_id,
               coalesce(a.adapter_id, '') AS adapter_id, a.owner_id, a.share_id,
               CASE WHEN b.request_id IS NULL THEN 1 ELSE 0 END AS num_requests, {_DIFFERENCES}
        FROM after a LEFT JOIN before b USING (submitted_at, request_id)
    ), minutes AS ({add_sql("minute", "changes")}
    ), hours AS ({add_sql("hour", "changes")}
    ), days AS ({add_sql("day", "changes")}
    ) {earn_sql("(SELECT * FROM changes WHERE owner_id IS NOT NULL) AS shared")}
    """
)


class LedgerWriter:
    """Writes measured requests of all tenants: the only way into the ledger and its rollups."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def upsert(self, rows: Sequence[Measured]) -> None:
        """Merges rows, of distinct requests, into the ledger, and the difference into the rollups, in one
        statement.

        There is one writer at a time: two that merged the same request at once would both see it absent and
        count it twice in the rollups. A batch takes milliseconds, so a lock costs less than finer locking.
        """
        await hold_ledger(self.session)
        times = [row.submitted_at for row in rows]
        await self.session.execute(
            _UPSERT,
            {
                "rows": msgspec.json.encode(rows).decode(),
                "earliest": min(times) - 1e-3,
                "latest": max(times) + 1e-3,
            },
        )

    async def ensure_partitions(self, first_month: date, num_months: int) -> int:
        """Creates the ledger's monthly partitions from `first_month` on; returns how many were missing."""
        statement = text("SELECT ensure_usage_partitions(CAST(:first AS date), :months)")
        return (
            await self.session.execute(statement, {"first": first_month, "months": num_months})
        ).scalar_one()


class UsageRepository(TenantRepository):
    """Queries one tenant's records and sums."""

    async def record(
        self, request_id: str, submitted_from: datetime, submitted_to: datetime
    ) -> UsageRecord | None:
        """Returns a request's row, given when it was submitted: between `submitted_from` and `submitted_to`,
        inclusive.
        """
        query = self.select_own(UsageRecord).where(
            UsageRecord.request_id == request_id,
            UsageRecord.submitted_at.between(submitted_from, submitted_to),
        )
        return (await self.session.execute(query)).scalars().first()

    async def near(self, request_id: str, submitted_at: datetime) -> UsageRecord | None:
        """Returns the row of a request submitted within a second of `submitted_at`."""
        second = timedelta(seconds=1)
        return await self.record(request_id, submitted_at - second, submitted_at + second)

    async def records(self, start: datetime, end: datetime, *, limit: int = 1000) -> list[UsageRecord]:
        """Returns rows submitted in [start, end), the oldest first."""
        query = (
            self.select_own(UsageRecord)
            .where(UsageRecord.submitted_at >= start, UsageRecord.submitted_at < end)
            .order_by(UsageRecord.submitted_at, UsageRecord.request_id)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())

    async def sums(
        self,
        start: datetime,
        end: datetime,
        *,
        unit: Unit | None,
        group_by: Sequence[str],
        key_ids: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        project_ids: Sequence[str] | None = None,
        user_ids: Sequence[str] | None = None,
        adapter_ids: Sequence[str] | None = None,
        service_tiers: Sequence[str] | None = None,
        excluded_key_ids: Sequence[str] | None = None,
    ) -> list[Row[*tuple[object, ...]]]:
        """Returns rows (bucket, *group_by, *SUMS) of whole minutes in [start, end), by bucket and group.

        `unit` is the bucket's width; None means one bucket that begins at `start`. `group_by` names some of
        `billing.rollups.KEYS`; a key that a request has no value of is empty. A filter lists the values that
        count; None means all. `excluded_key_ids` lists keys that do not count.
        """
        filters = {
            "key_id": key_ids,
            "model": models,
            "project_id": project_ids,
            "user_id": user_ids,
            "adapter_id": adapter_ids,
            "service_tier": service_tiers,
        }

        wanted = {name: list(values) for name, values in filters.items() if values}
        found = intervals(start, end, unit or "day")
        if not found:
            return []
        excluded = {"excluded_key_ids": list(excluded_key_ids)} if excluded_key_ids else {}
        units = tuple(interval.unit for interval in found)
        statement = _sums(units, unit, tuple(group_by), tuple(wanted), bool(excluded))
        rows = await self.execute_own(statement, begins=start, **bounds(found), **wanted, **excluded)
        return list(rows.all())

    async def since(self, start: datetime, end: datetime, limit: Limit) -> dict[str, int]:
        """Returns the usage of whole minutes in [start, end) that counts to `limit`, by the names in SUMS."""
        found = intervals(start, end)
        if not found:
            return dict.fromkeys(SUMS, 0)
        statement = _since(tuple(interval.unit for interval in found), limit.scope, limit.model)
        scope_parameters = {} if limit.scope == "tenant" else {"scope_id": limit.scope_id}
        if limit.scope == "key":
            scope_parameters["counted_id"] = limit.counted_id
        row = (await self.execute_own(statement, begins=start, **bounds(found), **scope_parameters)).first()
        return dict.fromkeys(SUMS, 0) if row is None else {name: getattr(row, name) for name in SUMS}


INSTANT = DateTime(timezone=True)
Covers = Callable[[type[RollupSums]], list[ColumnElement[bool]]]


@lru_cache(maxsize=512)
def _sums(
    interval_units: tuple[Unit, ...],
    unit: Unit | None,
    group_by: tuple[str, ...],
    filtered: tuple[str, ...],
    excludes_keys: bool,
) -> Select[Any]:
    """Returns the sums of rows that have, in each `filtered` column, one of the values of its parameter."""

    def covers(rollup: type[RollupSums]) -> list[ColumnElement[bool]]:
        found = [getattr(rollup, name).in_(bindparam(name, expanding=True)) for name in filtered]
        if excludes_keys:
            found.append(rollup.key_id.not_in(bindparam("excluded_key_ids", expanding=True)))
        return found

    return _summed(interval_units, unit, group_by, covers)


@lru_cache(maxsize=256)
def _since(interval_units: tuple[Unit, ...], scope: Scope, model: str) -> Select[Any]:
    """Returns the sums of rows that count to a limit of this scope and on these models."""

    def covers(rollup: type[RollupSums]) -> list[ColumnElement[bool]]:
        conditions: list[ColumnElement[bool]] = []
        scope_id, counted = bindparam("scope_id", type_=Text), bindparam("counted_id", type_=Text)
        if scope == "key":
            # A rotated key shares its limit with the keys it replaced.
            replaced_keys = select_owned(LimitRow, LimitRow.scope_id).where(
                LimitRow.scope == "key", LimitRow.counted_as == counted
            )
            conditions.append(or_(rollup.key_id.in_([scope_id, counted]), rollup.key_id.in_(replaced_keys)))
        elif scope == "project":
            # Rows from before the ledger had projects belong to their keys' projects.
            keys = select_owned(ApiKey, ApiKey.id).where(ApiKey.project_id == scope_id)
            unnamed = and_(rollup.project_id == "", rollup.key_id.in_(keys))
            conditions.append(or_(rollup.project_id == scope_id, unnamed))
        if model:
            conditions.append(_matches_model(rollup.model, model))
        return conditions

    return _summed(interval_units, None, (), covers)


def _summed(
    interval_units: tuple[Unit, ...], unit: Unit | None, group_by: tuple[str, ...], covers: Covers
) -> Select[Any]:
    """Returns the sums of rows that `covers`, over a time range split into intervals of these units.

    Its parameters are the `bounds` of the intervals, and `begins`.
    """
    parts = []
    for number, interval_unit in enumerate(interval_units):
        rollup: Any = ROLLUPS[interval_unit]
        at = getattr(rollup, interval_unit)
        bucket = bindparam("begins", type_=INSTANT) if unit is None else _bucket(at, unit, interval_unit)
        groups = [getattr(rollup, name) for name in group_by]
        totals = [func.sum(getattr(rollup, name)).label(name) for name in SUMS]
        part = select_owned(rollup, bucket.label("bucket"), *groups, *totals)
        within = (at >= bindparam(f"start_{number}"), at < bindparam(f"end_{number}"))
        parts.append(part.where(*within, *covers(rollup)).group_by("bucket", *groups))
    rows = union_all(*parts).subquery("rows")
    keys = [rows.c[name] for name in ("bucket", *group_by)]
    sums = [cast(func.sum(rows.c[name]), BigInteger).label(name) for name in SUMS]
    return select(*keys, *sums).group_by(*keys).order_by(*keys)


def _bucket(at: Any, unit: Unit, interval_unit: Unit) -> Any:
    """Rows of the bucket's own unit hold its start already: truncating costs as much as adding up."""
    return at if interval_unit == unit else func.date_trunc(unit, at, "UTC", type_=INSTANT)


def bounds(found: Sequence[Interval]) -> dict[str, datetime]:
    """Returns the parameters for where intervals begin and end, by their position."""
    starts = {f"start_{number}": interval.start for number, interval in enumerate(found)}
    return starts | {f"end_{number}": interval.end for number, interval in enumerate(found)}


def _matches_model(column: Any, model: str) -> ColumnElement[bool]:
    """Matches the full names of models that `model` means, as `Limit.covers` does."""
    base, _, adapter = model.partition(":")
    if adapter == "*":
        return column.startswith(f"{base}:", autoescape=True)
    if adapter and "@" not in adapter:
        return or_(column == model, column.startswith(f"{model}@", autoescape=True))
    return column == model


class PriceList:
    """Queries the versions of the prices. They are the same for all tenants, so there is no tenant scope."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def add(self, price: Price) -> None:
        self.session.add(price)

    async def versions(self) -> list[Price]:
        """Returns all versions, ordered by when they take effect."""
        return list((await self.session.execute(select(Price).order_by(Price.effective_from))).scalars())

    async def in_effect(self, moment: datetime) -> Price | None:
        """Returns the version in effect at `moment`; None before the first."""
        query = select(Price).where(Price.effective_from <= moment).order_by(Price.effective_from.desc())
        return (await self.session.execute(query.limit(1))).scalar_one_or_none()


def _costs_by_day() -> Select[Any, Any]:
    def of(at: Any, *columns: Any) -> Select[Any]:
        begins, ends = (bindparam(name, type_=INSTANT) for name in ("start", "end"))
        return select_owned(at.class_, at.label("at"), *columns).where(at >= begins, at < ends)

    used = of(UsageRollupDay.day, func.sum(UsageRollupDay.cost).label("cost")).group_by(UsageRollupDay.day)
    charged = of(Charge.at, Charge.cost)
    taken = of(Reversal.at, -Reversal.cost).where(Reversal.charge_id.is_not(None))
    rows = union_all(used, charged, taken).subquery()
    day = cast(func.timezone("UTC", rows.c.at), Date).label("day")
    return select(day, func.sum(rows.c.cost)).group_by(day)


COSTS_BY_DAY = _costs_by_day()
"""(UTC day, micro-USD) of a tenant over whole days in [start, end): usage and charges, less reversals."""
