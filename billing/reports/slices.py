"""Slices of a tenant's usage for those who look into it: what was used, with what it costs, in buckets and
groups; which values there are to choose from; and the requests behind it, newest first.

The sums are those of the usage and cost reports over the same time, from the same rows:
what is asked with the same groups and filters comes to the same.
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
from billing.reports.repository import SliceRepository
from billing.repository import UsageRepository
from db.rollup_intervals import Unit
from db.session import Database, ReadSession

REQUEST = "request"


@dataclass(frozen=True, slots=True)
class Used:
    """Of one bucket and group: the requests, or the charges of one kind."""

    bucket: datetime
    group: str
    """Empty where nothing was grouped by, or what was used has none of it."""
    kind: str
    requests: int
    input_tokens: int
    """Cached ones among them."""
    cached_tokens: int
    output_tokens: int
    cost: int
    """Micro-USD."""


@dataclass(frozen=True, slots=True)
class Look:
    """At a stretch of time."""

    used: list[Used]
    values: Mapping[str, list[tuple[str, int]]]
    """By OpenAI's name of each dimension, the values that its requests have, whatever is filtered, with how
    many do, the most frequent first.
    """
    was_ever: bool
    """Whether the tenant asked for anything, in this time or in another."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of a request in the list: what is older stands below it."""

    submitted_at: datetime
    request_id: str


@dataclass(frozen=True, slots=True)
class Requests:
    rows: Sequence[UsageRecord]
    reversed_ids: frozenset[str]
    """Of them, those that were taken back."""
    next: Place | None
    """Where the next page begins."""


class UsageSlices:
    """Of one tenant at a time."""

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
    ) -> Look:
        """What was used in [start, end), whole minutes, by bucket and by the values of `group_by`, one of
        `COLUMNS`. Charges are among it where nothing is filtered: they are no project's, no key's and no
        model's; storage is its adapter's.

        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        check_filters(**slice.filters)
        async with self._database.read(tenant_id) as session:
            rows = SliceRepository(session, tenant_id)
            used = await _used(session, tenant_id, start, end, unit, group_by, slice)
            values = await rows.values(start, end)
            was_ever = bool(used or values["model"]) or await rows.is_used()
        return Look(used, {name: values[column] for name, column in COLUMNS.items()}, was_ever)

    async def by_day(
        self, tenant_id: str, start: datetime, end: datetime, adapter_ids: Sequence[str], since: datetime
    ) -> tuple[list[Used], list[Used]]:
        """What was used in [start, end), by day; and what of these adapters, since `since`, by day and
        adapter. Raises DatabaseUnavailable.
        """
        adapters = Slice(adapter_ids=tuple(adapter_ids))
        async with self._database.read(tenant_id) as session:
            whole = await _used(session, tenant_id, start, end, "day", None, WHOLE)
            if not adapter_ids:
                return whole, []
            return whole, await _used(session, tenant_id, since, end, "day", "adapter_id", adapters)

    async def is_used(self, tenant_id: str) -> bool:
        """Whether the tenant ever asked for anything."""
        async with self._database.read(tenant_id) as session:
            return await SliceRepository(session, tenant_id).is_used()

    async def requests(
        self,
        tenant_id: str,
        start: datetime,
        end: datetime,
        *,
        slice: Slice = WHOLE,
        after: Place | None = None,
        limit: int = 50,
    ) -> Requests:
        """Requests submitted in [start, end), the newest first, those beyond `after`.

        Of a slice, only hours are read in which its sums say that there is something of it.
        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        check_filters(**slice.filters)
        wanted = slice.columns
        found: list[UsageRecord] = []
        place = None if after is None else (after.submitted_at, after.request_id)
        async with self._database.read(tenant_id) as session:
            rows = SliceRepository(session, tenant_id)
            until = end if after is None else min(end, after.submitted_at + timedelta(microseconds=1))
            while len(found) <= limit and until > start:
                hours = await rows.hours(start, until, wanted, limit + 1) if wanted else None
                found += await rows.requests(start, until, wanted, hours, place, limit + 1 - len(found))
                if hours is None or len(hours) <= limit:
                    break
                until = hours[-1]
            page = found[:limit]
            reversals = await rows.reversals_of(page) if page else []
        last = page[-1] if len(found) > limit else None
        return Requests(
            page,
            frozenset(reversal.request_id for reversal in reversals if reversal.request_id is not None),
            None if last is None else Place(last.submitted_at, last.request_id),
        )


async def _used(
    session: ReadSession,
    tenant_id: str,
    start: datetime,
    end: datetime,
    unit: Unit,
    group_by: str | None,
    slice: Slice,
) -> list[Used]:
    groups = [] if group_by is None else [COLUMNS[group_by]]
    rows = await UsageRepository(session, tenant_id).sums(
        start, end, unit=unit, group_by=groups, **slice.filters
    )
    charges = await ChargeRepository(session, tenant_id).sums(start, end, unit) if slice.is_whole else []
    found = []
    for row in rows:
        bucket, *group, requests, prompt, cached, completion, cost, _, _ = row
        name = str(group[0]) if group else ""
        found.append(Used(bucket, name, REQUEST, requests, prompt, cached, completion, cost))  # type: ignore[arg-type]
    for row in charges:
        is_stored = group_by == "adapter_id" and row.kind == "adapter_storage"
        name = row.reference.partition("@")[0] if is_stored else ""
        found.append(Used(row.bucket, name, row.kind, 0, 0, 0, 0, row.cost))
    return found
