"""Queries the rollups of all tenants beside the ledger's rows that they are sums of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.rollups.tables import KEYS, SUMS, TABLES, add_sql
from db.rollup_intervals import UNITS, Unit

WRITER_LOCK = 0x4C656467
"""The advisory lock ("Ledg") of every writer of records and rollups, so that each difference is computed
against what is stored.
"""


async def hold_ledger(session: AsyncSession) -> None:
    """Takes the lock of the ledger's only writer until the transaction ends."""
    await session.execute(select(func.pg_advisory_xact_lock(WRITER_LOCK)))


@dataclass(frozen=True, slots=True)
class RollupDifference:
    """A rollup row that differs from the sums of the ledger's rows."""

    unit: Unit
    tenant_id: str
    start: datetime
    """The start of its minute, hour or day."""
    key: dict[str, str]
    """Values by the names in KEYS."""
    expected: dict[str, int]
    """Sums by the names in SUMS, all zero if there should be no row."""
    found: dict[str, int]


# The rows of the rollups: records at their submission, less reversals at their own time.
_ROWS = f"""
    SELECT tenant_id, submitted_at AS at, key_id, model, service_tier, coalesce(project_id, '') AS project_id,
           coalesce(user_id, '') AS user_id, coalesce(adapter_id, '') AS adapter_id, 1 AS num_requests,
           prompt_tokens, cached_tokens, completion_tokens, cost + surcharge AS cost, cached_cost,
           output_cost, surcharge
    FROM usage_records WHERE submitted_at >= :start AND submitted_at < :end
    UNION ALL
    SELECT tenant_id, at, {", ".join(KEYS)}, {", ".join(f"-{name}" for name in SUMS)}
    FROM reversals WHERE request_id IS NOT NULL AND at >= :start AND at < :end
"""


def _comparison(unit: Unit) -> str:
    keys = ", ".join(KEYS)
    sums = ", ".join(f"sum({name}) AS {name}" for name in SUMS)
    # No row means the same as a row of zeros.
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
    """Compares and corrects all tenants' rollups. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def differences(self, start: datetime, end: datetime) -> list[RollupDifference]:
        """Returns every row of the three rollups in [start, end), whole UTC days, that differs from the
        ledger's rows. Each unit takes one statement, so a concurrent write is on both sides or on neither.
        """
        found = []
        for unit in UNITS:
            rows = await self.session.execute(_COMPARISONS[unit], {"start": start, "end": end})
            found += [_difference(unit, row) for row in rows.mappings()]
        return found

    async def correct(self, differences: Sequence[RollupDifference]) -> None:
        """Sets the rollups to the expected values. The ledger must be held since the comparison."""
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
