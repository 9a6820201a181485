"""Reads usage in buckets as a table: a row for every bucket and group, and one for each kind of charge in it.

Its columns add up to the usage and cost reports over the same time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC
from typing import Any

from billing.charges import CALIBRATION, STORAGE
from billing.reports.buckets import Page, Width, instant, page_of
from billing.reports.filtering import WHOLE, Slice
from billing.reports.grouping import COLUMNS, columns_of, named
from billing.reports.reasoning_sums import ReasoningSums
from billing.reports.tables import Cell, Column, Row
from billing.repository import UsageRepository
from billing.totals import LedgerTotals
from db.session import Database

PAGE_ROWS = 1000
CHARGES = (STORAGE, CALIBRATION)
_MEASURES = (
    "num_requests", "input_tokens", "input_cached_tokens", "output_tokens", "cost_micro_usd",
    "reasoning_tokens",
)  # fmt: skip
"""New columns come last: none moves."""


def usage_columns(group_by: Sequence[str]) -> tuple[Column, ...]:
    """Returns the columns of the table of usage grouped by these."""
    return (
        Column("start_time", "moment", repeats=True),
        Column("end_time", "moment", repeats=True),
        Column("kind", "text", repeats=True),
        *(Column(name, "text", repeats=True) for name in COLUMNS if name in group_by),
        *(Column(name, "count") for name in _MEASURES),
    )


async def usage_pages(
    database: Database,
    tenant_id: str,
    start: int,
    end: int,
    width: Width,
    group_by: Sequence[str],
    slice: Slice = WHOLE,
) -> AsyncIterator[Sequence[Row]]:
    """Yields the table's rows of [start, end), Unix seconds of whole minutes. No transaction is open between
    two pages. A slice excludes charges. Raises DatabaseUnavailable.
    """
    async with database.read(tenant_id) as session:
        used = await LedgerTotals(session, tenant_id).used_between()
    if used is None:
        return
    # Years without usage are skipped rather than read page by page.
    start, end = max(start, int(used[0].timestamp())), min(end, int(used[1].timestamp()))
    while start < end:
        page = page_of(width, start, end)
        rows = await _rows(database, tenant_id, page, group_by, slice)
        for first in range(0, len(rows), PAGE_ROWS):
            yield rows[first : first + PAGE_ROWS]
        start = page.spans[-1][1]


async def _rows(
    database: Database, tenant_id: str, page: Page, group_by: Sequence[str], slice: Slice
) -> list[Row]:
    columns = columns_of(group_by)
    async with database.read(tenant_id) as session:
        used = await UsageRepository(session, tenant_id).sums(
            page.start, page.end, unit=page.width.unit, group_by=columns, **slice.filters
        )
        costs = (
            await LedgerTotals(session, tenant_id).costs(
                page.start, page.end, unit=page.width.unit, group_by=columns
            )
            if slice.is_whole
            else []
        )
        reasoning = await ReasoningSums(session, tenant_id).of_days(
            {one.bucket.astimezone(UTC).replace(hour=0, minute=0) for one in used},
            *(page.start, page.end, page.width.unit, columns, slice.columns, slice.excluded_key_ids),
        )
    spans = {start - start % page.width.seconds: (instant(start), instant(end)) for start, end in page.spans}

    def row(kind: str, one: Any, *measures: int) -> Row:
        cells: list[Cell] = [*spans[int(one.bucket.timestamp())], kind]
        return [*cells, *named(one, group_by).values(), *measures]

    rows = [
        row(
            "request",
            one,
            *(one.num_requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens, one.cost),
            reasoning[one.bucket, *(getattr(one, name) for name in columns)],
        )
        for one in used
    ]
    rows += [row(line.kind, line, 0, 0, 0, 0, line.cost, 0) for line in costs if line.kind in CHARGES]
    return sorted(rows, key=lambda cells: str(cells[0]))
