"""Exports a tenant's ledger as a file: which table it holds, and its name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from billing.reports.buckets import (
    USAGE_WIDTHS,
    check_filters,
    check_groups,
    instant,
    whole_minutes,
    width_of,
)
from billing.reports.exports import Exports
from billing.reports.filtering import WHOLE, Slice
from billing.reports.grouping import COLUMNS
from billing.reports.ledger_table import COLUMNS as LEDGER_COLUMNS
from billing.reports.ledger_table import ledger_pages
from billing.reports.usage_table import usage_columns, usage_pages
from db.session import Database


@dataclass(frozen=True, slots=True)
class Export:
    """A file that is written as its parts are read."""

    filename: str
    media_type: str
    pieces: AsyncIterator[bytes]
    """Raises DatabaseUnavailable, after which the file is incomplete."""


class UsageExports:
    """Exports the ledger of one tenant per call."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._exports = Exports()

    async def open(
        self,
        tenant_id: str,
        *,
        format: str,
        start_time: int,
        end_time: int | None = None,
        bucket_width: str | None = None,
        group_by: Sequence[str] = (),
        slice: Slice = WHOLE,
    ) -> Export:
        """Exports every ledger row in [start_time, end_time), with times as in usage reports; with `group_by`
        or `bucket_width` (default `1d` if grouped), their sums. A slice excludes charges. Raises
        InvalidReportQuery.
        """
        check_filters(**slice.filters)
        check_groups(group_by, tuple(COLUMNS))
        start, end = whole_minutes(start_time, end_time)
        if bucket_width is None and not group_by:
            pages = ledger_pages(self._database, tenant_id, instant(start), instant(end), slice=slice)
            form, pieces = await self._exports.written(format, LEDGER_COLUMNS, pages)
        else:
            width = width_of(bucket_width or "1d", USAGE_WIDTHS)
            sums = usage_pages(self._database, tenant_id, start, end, width, group_by, slice)
            form, pieces = await self._exports.written(format, usage_columns(group_by), sums)
        name = f"usage-{instant(start):%Y%m%dT%H%MZ}-{instant(end):%Y%m%dT%H%MZ}.{form.ending}"
        return Export(name, form.media_type, pieces)
