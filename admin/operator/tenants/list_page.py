"""Gathers the list of tenants: this month's spend and tokens, recent errors, and the queue.

The list comes by name, in pages. Sorted by another column, up to `MAX_TENANTS` tenants are compared, and the
details are gathered for one page of them. Every figure is read from daily sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from admin.badge import Badge
from admin.charts import layout
from admin.operator.services import OperatorServices
from admin.operator.tenants.queue import QueueShares, QueueWatch
from admin.operator.tenants.ranking import MAX_TENANTS, Ranking
from admin.operator.tenants.state import state_of
from admin.web.form_errors import FieldError
from admin.web.sorting import Column, Heading, Sort, headings, sort_rows
from billing.customers.service import CustomerUse
from telemetry.tasks import gather_all
from tenants.operators.directory import TenantFilter, TenantRow
from tenants.plans import PlanService

PAGE = 50
DAYS = 7
"""Of the sparkline and of the error rate."""
FIELDS = ("search", "plan", "standing")
STANDINGS = (
    ("", "Any"),
    ("active", "Active"),
    ("grace", "Payment overdue"),
    ("suspended", "Unpaid"),
    ("disabled", "Suspended"),
)
COLUMNS = (
    Column("Name", "name"),
    Column("Status", "status"),
    Column("Plan", "plan"),
    Column("Spend", "spend", is_number=True, starts_descending=True),
    Column("Tokens", "tokens", is_number=True, starts_descending=True),
    Column("Last 7 days"),
    Column("Errors", "errors", is_number=True, starts_descending=True),
    Column("Queue", "queue", is_number=True, starts_descending=True),
    Column("Last request", "last_at", starts_descending=True),
)
_USED = ("spend", "tokens", "last_at")
"""Columns that are sorted by the month's use."""


@dataclass(frozen=True)
class TenantLine:
    """A line of the list."""

    id: str
    name: str
    plan: str
    state: Badge
    use: CustomerUse
    line: layout.Spark | None
    """Tokens by day."""
    requests: int
    """Of the last `DAYS` days; so is `failed`."""
    failed: int
    queue: tuple[int, int] | None
    """Requests that wait, and those of all tenants; None if not known."""


@dataclass(frozen=True)
class TenantList:
    rows: list[TenantLine]
    headings: list[Heading]
    count: int
    """Of all that the filter matches."""
    first: int
    """The position of the first row; 0 if the list isn't sorted."""
    num_sorted: int | None
    """How many were compared, if that isn't all."""
    next_after: str | None
    """Where the next page begins: a name, or a position if the list is sorted."""
    plans: list[tuple[str, str]]
    """To choose from."""


NOTHING = TenantList([], headings(COLUMNS, None), 0, 0, None, None, [])


class TenantListPage:
    """Gathers the page."""

    def __init__(self, plans: PlanService, operation: OperatorServices) -> None:
        self._plans = plans
        self._directory = operation.directory
        self._customers = operation.customers
        self._failures = operation.failures
        self._queue = QueueWatch(operation.engines)
        self._ranking = Ranking(operation, DAYS)

    async def gather(
        self, wanted: TenantFilter, after: str | None = None, sort: Sort | None = None
    ) -> TenantList:
        """Raises FieldError, DatabaseUnavailable."""
        now = datetime.now(UTC)
        queue, plans = await gather_all(self._queue.now(), self._plans.list())
        choices = [("", "Any"), *((plan.name, plan.name) for plan in plans)]
        if sort is None:
            found, count = await self._directory.page(wanted, after=after, limit=PAGE + 1)
            rows = await self._lines(found[:PAGE], queue, now)
            next_after = found[PAGE - 1].name if len(found) > PAGE else None
            return TenantList(rows, headings(COLUMNS, None), count, 0, None, next_after, choices)
        start = _position(after)
        found, count = await self._directory.page(wanted, limit=MAX_TENANTS)
        values = await self._values(found, sort.column, queue)
        shown = sort_rows(found, sort, lambda row, _: values.get(row.id))[start : start + PAGE]
        end = start + len(shown)
        return TenantList(
            await self._lines(shown, queue, now),
            headings(COLUMNS, sort),
            count,
            start + 1,
            len(found) if len(found) < count else None,
            str(end) if end < len(found) else None,
            choices,
        )

    async def _values(self, rows: Sequence[TenantRow], column: str, queue: QueueShares) -> Mapping[str, Any]:
        """Returns what the rows are sorted by, by tenant."""
        if column in _USED:
            uses = (await self._ranking.figures()).uses
            value = _tokens if column == "tokens" else attrgetter(column)
            return {id: value(use) for id, use in uses.items()}
        if column == "errors":
            failures = (await self._ranking.figures()).failures
            return {id: failed / requests for id, (requests, failed) in failures.items() if requests}
        if column == "queue":
            waits = {row.id: queue.of(row.id) for row in rows}
            return {id: wait and wait[0] for id, wait in waits.items()}
        if column == "status":
            return {row.id: state_of(row).word for row in rows}
        return {row.id: getattr(row, column).casefold() for row in rows}

    async def _lines(self, rows: Sequence[TenantRow], queue: QueueShares, now: datetime) -> list[TenantLine]:
        ids = [row.id for row in rows]
        uses, days, failures = await gather_all(
            self._customers.month(ids, now),
            self._customers.tokens_by_day(ids, now, DAYS),
            self._failures.recent(ids, now, DAYS),
        )
        return [
            TenantLine(
                row.id,
                row.name,
                row.plan,
                state_of(row),
                uses[row.id],
                layout.spark(days[row.id]),
                *failures.get(row.id, (0, 0)),
                queue.of(row.id),
            )
            for row in rows
        ]


def read_filter(fields: Mapping[str, str]) -> TenantFilter:
    """Raises FieldError."""
    given = {name: fields.get(name, "").strip() for name in FIELDS}
    for name, value in given.items():
        if len(value) > 200 or "\x00" in value:
            raise FieldError(name, "This value is too long or contains invalid characters.")
    if given["standing"] not in {name for name, _ in STANDINGS}:
        raise FieldError("standing", "Unknown status.")
    return TenantFilter(**given)  # type: ignore[arg-type]


def _tokens(use: CustomerUse) -> int:
    return use.input_tokens + use.output_tokens


def _position(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdecimal() and len(after) < 6):
        raise FieldError("form", "This page of the list doesn't exist.")
    return int(after)
