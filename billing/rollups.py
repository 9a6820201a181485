"""The ledger's sums by minute, hour and day: how a stretch of time is read from them, and what they are by
the ledger's rows.

Owns their grains, their keys, and the comparison with the rows they are sums of. Refuses to know who reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.models import RollupSums, UsageRollup, UsageRollupDay, UsageRollupHour
from db.session import EVERY_TENANT, Database

Unit = Literal["minute", "hour", "day"]
"""In the words of PostgreSQL's date_trunc."""
UNITS: tuple[Unit, ...] = get_args(Unit)
ROLLUPS: dict[Unit, type[RollupSums]] = {
    "minute": UsageRollup,
    "hour": UsageRollupHour,
    "day": UsageRollupDay,
}
TABLES: dict[Unit, str] = {
    "minute": UsageRollup.__tablename__,
    "hour": UsageRollupHour.__tablename__,
    "day": UsageRollupDay.__tablename__,
}
_SECONDS: dict[Unit, int] = {"minute": 60, "hour": 3600, "day": 86_400}
KEYS = ("key_id", "model", "service_tier", "project_id", "user_id", "adapter_id")
"""What usage can be grouped by, beside its tenant and time."""
SUMS = (
    "num_requests", "prompt_tokens", "cached_tokens", "completion_tokens",
    "cost", "cached_cost", "output_cost",
)  # fmt: skip

WRITER_LOCK = 0x4C656467
"""Advisory lock, "Ledg": whoever writes records or their sums holds it, so that a difference is taken against
what is stored.
"""


async def hold_ledger(session: AsyncSession) -> None:
    """Be the only writer of records and rollups until the transaction ends."""
    await session.execute(select(func.pg_advisory_xact_lock(WRITER_LOCK)))


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time that one grain's rows make up whole."""

    unit: Unit
    start: datetime
    end: datetime


def pieces(start: datetime, end: datetime, coarsest: Unit) -> list[Piece]:
    """[start, end), both taken up to their minute, of as few rows as no coarser ones than `coarsest` allow:
    whole days from the days, and what is left at its edges from hours and minutes.
    """
    return [
        Piece(unit, _instant(first), _instant(last))
        for unit, first, last in _cut(_minute_up(start), _minute_up(end), coarsest)
    ]


def _cut(start: int, end: int, unit: Unit) -> list[tuple[Unit, int, int]]:
    if start >= end:
        return []
    if unit == "minute":
        return [(unit, start, end)]
    width, finer = _SECONDS[unit], UNITS[UNITS.index(unit) - 1]
    first, last = start + -start % width, end - end % width
    if first >= last:
        return _cut(start, end, finer)
    return [*_cut(start, first, finer), (unit, first, last), *_cut(last, end, finer)]


def _minute_up(moment: datetime) -> int:
    return -(-(moment - _EPOCH) // timedelta(minutes=1)) * 60


_EPOCH = datetime.fromtimestamp(0, UTC)


def _instant(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def month_of(day: date) -> tuple[datetime, datetime]:
    """The beginning of its UTC month, and of the next."""
    start = datetime(day.year, day.month, 1, tzinfo=UTC)
    return start, (start + timedelta(days=31)).replace(day=1)


def add_sql(unit: Unit, source: str) -> str:
    """An INSERT that adds `source`, rows of (tenant_id, at, *KEYS, *SUMS), to a grain's sums."""
    keys, sums = ", ".join(KEYS), ", ".join(f"sum({name})" for name in SUMS)
    return f"""
        INSERT INTO {TABLES[unit]} AS sums (tenant_id, {unit}, {keys}, {", ".join(SUMS)})
        SELECT tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}, {sums}
        FROM {source} GROUP BY tenant_id, date_trunc('{unit}', at, 'UTC'), {keys}
        ON CONFLICT (tenant_id, {unit}, {keys}) DO UPDATE SET
            {", ".join(f"{name} = sums.{name} + excluded.{name}" for name in SUMS)}
    """


@dataclass(frozen=True, slots=True)
class RollupDifference:
    """A row of a rollup that is not what the ledger's rows come to."""

    unit: Unit
    tenant_id: str
    start: datetime
    """Of its minute, hour or day."""
    key: dict[str, str]
    """By the names in KEYS."""
    expected: dict[str, int]
    """The sums, by the names in SUMS. All zero where there should be no row."""
    found: dict[str, int]


# What the ledger's rows come to: records when they were submitted, less reversals when they were made.
_ROWS = f"""
    SELECT tenant_id, submitted_at AS at, key_id, model, service_tier, coalesce(project_id, '') AS project_id,
           coalesce(user_id, '') AS user_id, coalesce(adapter_id, '') AS adapter_id, 1 AS num_requests,
           prompt_tokens, cached_tokens, completion_tokens, cost, cached_cost, output_cost
    FROM usage_records WHERE submitted_at >= :start AND submitted_at < :end
    UNION ALL
    SELECT tenant_id, at, {", ".join(KEYS)}, {", ".join(f"-{name}" for name in SUMS)}
    FROM reversals WHERE request_id IS NOT NULL AND at >= :start AND at < :end
"""


def _comparison(unit: Unit) -> str:
    keys = ", ".join(KEYS)
    sums = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
    # No row and a row of zeros say the same.
    expected = [f"CAST(coalesce(e.{name}, 0) AS bigint)" for name in SUMS]
    found = [f"coalesce(f.{name}, 0)" for name in SUMS]
    return f"""
        WITH rows AS ({_ROWS}), expected AS (
            SELECT tenant_id, date_trunc('{unit}', at, 'UTC') AS {unit}, {keys}, {sums}
            FROM rows GROUP BY 1, 2, {keys}
        ), found AS (SELECT * FROM {TABLES[unit]} WHERE {unit} >= :start AND {unit} < :end)
        SELECT tenant_id, {unit} AS start, {keys},
               {", ".join(f"{sum_} AS expected_{name}" for sum_, name in zip(expected, SUMS, strict=True))},
               {", ".join(f"{sum_} AS found_{name}" for sum_, name in zip(found, SUMS, strict=True))}
        FROM expected e FULL JOIN found f USING (tenant_id, {unit}, {keys})
        WHERE ({", ".join(expected)}) IS DISTINCT FROM ({", ".join(found)})
        ORDER BY 1, 2, {keys}
    """


_COMPARISONS = {unit: text(_comparison(unit)) for unit in UNITS}
_CORRECTIONS = {
    unit: text(
        add_sql(
            unit,
            "(SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(tenant_id text, at timestamptz, "
            + ", ".join([*(f"{name} text" for name in KEYS), *(f"{name} bigint" for name in SUMS)])
            + ")) AS corrections",
        )
    )
    for unit in UNITS
}


class RollupBooks:
    """All tenants' rollups beside the rows they are sums of. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def differences(self, start: datetime, end: datetime) -> list[RollupDifference]:
        """Every row of the three rollups in [start, end), whole UTC days, that is not what the ledger's rows
        come to. One statement for each grain: what is written meanwhile is in both or in neither.
        """
        found = []
        for unit in UNITS:
            rows = await self.session.execute(_COMPARISONS[unit], {"start": start, "end": end})
            found += [_difference(unit, row) for row in rows.mappings()]
        return found

    async def correct(self, differences: Sequence[RollupDifference]) -> None:
        """Make the rollups what the differences say is expected. Hold the ledger since they were taken."""
        for unit in UNITS:
            rows = [
                {
                    "tenant_id": difference.tenant_id,
                    "at": difference.start.isoformat(),
                    **difference.key,
                    **{name: difference.expected[name] - difference.found[name] for name in SUMS},
                }
                for difference in differences
                if difference.unit == unit
            ]
            if rows:
                await self.session.execute(_CORRECTIONS[unit], {"rows": msgspec.json.encode(rows).decode()})


def _difference(unit: Unit, row: Any) -> RollupDifference:
    return RollupDifference(
        unit,
        row["tenant_id"],
        row["start"],
        {name: row[name] for name in KEYS},
        {name: row[f"expected_{name}"] for name in SUMS},
        {name: row[f"found_{name}"] for name in SUMS},
    )


async def rederive(
    database: Database, month: date, *, fix: bool = False, until: datetime | None = None
) -> list[RollupDifference]:
    """Sum a UTC month's rows up again, a day at a time, and name every row of a rollup that differs; with
    `fix`, make it right, with no other writer meanwhile. Raises DatabaseUnavailable.

    `until`: days that begin later have no rows yet.
    """
    day, end = month_of(month)
    end = min(end, until or end)
    found: list[RollupDifference] = []
    while day < end:
        following = day + timedelta(days=1)
        session_of = database.write if fix else database.read
        async with session_of(EVERY_TENANT) as session:
            if fix:
                await hold_ledger(session)
            books = RollupBooks(session)
            differences = await books.differences(day, following)
            if fix:
                await books.correct(differences)
        found += differences
        day = following
    return found
