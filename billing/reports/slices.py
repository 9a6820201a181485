"""Reads slices of a tenant's usage: costs in buckets and groups, the values to filter by, and the requests.

The sums come from the same rows as the usage and cost reports, so the same groups and filters give the same
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from billing.charges import ChargeRepository
from billing.models import UsageRecord
from billing.reports.buckets import check_filters
from billing.reports.filtering import WHOLE, Slice
from billing.reports.grouping import COLUMNS
from billing.reports.repository import Outcome, SliceRepository
from billing.repository import UsageRepository
from db.rollup_intervals import Unit
from db.session import Database, ReadSession

REQUEST = "request"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The usage of one bucket and group: its requests, or its charges of one kind."""

    bucket: datetime
    group: str
    """Empty if nothing was grouped by, or the usage has no such value."""
    kind: str
    requests: int
    input_tokens: int
    """Includes cached tokens."""
    cached_tokens: int
    output_tokens: int
    cost: int
    """Micro-USD."""


@dataclass(frozen=True, slots=True)
class UsageView:
    """The usage in a time range, and the values to filter it by."""

    used: list[UsageRow]
    values: Mapping[str, list[tuple[str, int]]]
    """By OpenAI's name of each dimension, each value with its number of requests, whatever the filters, the
    most frequent first.
    """
    has_any_usage: bool
    """Whether the tenant has any usage, at any time."""


@dataclass(frozen=True, slots=True)
class RequestPosition:
    """A request's position in the list; older requests come after it."""

    submitted_at: datetime
    request_id: str


@dataclass(frozen=True, slots=True)
class Requests:
    rows: Sequence[UsageRecord]
    reversed_ids: frozenset[str]
    """The ids of those rows that were reversed."""
    next: RequestPosition | None
    """Where the next page begins."""


class UsageSlices:
    """Reads the slices of one tenant per call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def look(
        self,
        tenant_id: str,
        start: datetime,
        end: datetime,
        *,
        unit: Unit,
        group_by: str | None = None,
        slice: Slice = WHOLE,
    ) -> UsageView:
        """Returns the usage in [start, end), whole minutes, by bucket and by the values of `group_by`, one of
        `COLUMNS`. Without filters it includes charges, which belong to no project, key or model; storage
        belongs to its adapter.

        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        check_filters(**slice.filters)
        async with self._database.read(tenant_id) as session:
            rows = SliceRepository(session, tenant_id)
            used = await _used(session, tenant_id, start, end, unit, group_by, slice)
            values = await rows.values(start, end)
            has_any_usage = bool(used or values["model"]) or await rows.is_used()
        return UsageView(used, {name: values[column] for name, column in COLUMNS.items()}, has_any_usage)

    async def by_day(
        self,
        tenant_id: str,
        start: datetime,
        end: datetime,
        adapter_ids: Sequence[str],
        since: datetime,
        excluded_key_ids: tuple[str, ...] = (),
    ) -> tuple[list[UsageRow], list[UsageRow]]:
        """Returns the usage in [start, end) by day, and that of these adapters since `since` by day and
        adapter. Raises DatabaseUnavailable.
        """
        every = Slice(excluded_key_ids=excluded_key_ids)
        adapters = Slice(adapter_ids=tuple(adapter_ids), excluded_key_ids=excluded_key_ids)
        async with self._database.read(tenant_id) as session:
            whole = await _used(session, tenant_id, start, end, "day", None, every)
            if not adapter_ids:
                return whole, []
            return whole, await _used(session, tenant_id, since, end, "day", "adapter_id", adapters)

    async def values(
        self, tenant_id: str, start: datetime, end: datetime
    ) -> dict[str, list[tuple[str, int]]]:
        """Returns the values of each dimension in [start, end), as `UsageView.values` has them. Raises
        DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            values = await SliceRepository(session, tenant_id).values(start, end)
        return {name: values[column] for name, column in COLUMNS.items()}

    async def is_used(self, tenant_id: str) -> bool:
        """Returns whether the tenant has any usage, at any time."""
        async with self._database.read(tenant_id) as session:
            return await SliceRepository(session, tenant_id).is_used()

    async def requests(
        self,
        tenant_id: str,
        start: datetime,
        end: datetime,
        *,
        slice: Slice = WHOLE,
        outcome: Outcome | None = None,
        after: RequestPosition | None = None,
        limit: int = 50,
    ) -> Requests:
        """Returns requests submitted in [start, end) and after the position `after`, the newest first.
        `outcome`: only those that succeeded, or that failed or were cancelled.

        For a slice, only hours whose sums have anything of it are read. Raises InvalidReportQuery,
        DatabaseUnavailable.
        """
        check_filters(**slice.filters)
        wanted, excluded = slice.columns, slice.excluded_key_ids
        found: list[UsageRecord] = []
        place = None if after is None else (after.submitted_at, after.request_id)
        async with self._database.read(tenant_id) as session:
            rows = SliceRepository(session, tenant_id)
            until = end if after is None else min(end, after.submitted_at + timedelta(microseconds=1))
            while len(found) <= limit and until > start:
                hours = None
                if wanted or excluded:
                    hours = await rows.hours(start, until, wanted, limit + 1, excluded)
                found += await rows.requests(
                    *(start, until, wanted, hours, place, limit + 1 - len(found)),
                    excluded_key_ids=excluded,
                    outcome=outcome,
                )
                if hours is None or len(hours) <= limit:
                    break
                until = hours[-1]
            page = found[:limit]
            reversals = await rows.reversals_of(page) if page else []
        last = page[-1] if len(found) > limit else None
        return Requests(
            page,
            frozenset(reversal.request_id for reversal in reversals if reversal.request_id is not None),
            None if last is None else RequestPosition(last.submitted_at, last.request_id),
        )


async def _used(
    session: ReadSession,
    tenant_id: str,
    start: datetime,
    end: datetime,
    unit: Unit,
    group_by: str | None,
    slice: Slice,
) -> list[UsageRow]:
    groups = [] if group_by is None else [COLUMNS[group_by]]
    rows = await UsageRepository(session, tenant_id).sums(
        start, end, unit=unit, group_by=groups, **slice.filters
    )
    charges = await ChargeRepository(session, tenant_id).sums(start, end, unit) if slice.is_whole else []
    found = []
    for row in rows:
        bucket, *group, requests, prompt, cached, completion, cost, _, _, _ = row
        name = str(group[0]) if group else ""
        found.append(UsageRow(bucket, name, REQUEST, requests, prompt, cached, completion, cost))  # type: ignore[arg-type]
    for row in charges:
        is_stored = group_by == "adapter_id" and row.kind == "adapter_storage"
        name = row.reference.partition("@")[0] if is_stored else ""
        found.append(UsageRow(row.bucket, name, row.kind, 0, 0, 0, 0, row.cost))
    return found
