"""Gathers the list of requests: those in the ledger and those that were refused, in one order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import merge

from admin import formatting
from admin.badge import Badge
from admin.usage.labels import Label, LabelLookup, Labels, May
from admin.usage.page import Chip, Filter, chips_of, filters_of, months_of, names_of
from admin.usage.query import RANGES, STATUSES, UsageQuery
from admin.usage.receipt_page import state_word
from admin.web.form_errors import FieldError
from billing.models import UsageRecord
from billing.reports.repository import Outcome
from billing.reports.slices import RequestPosition, Requests, UsageSlices
from telemetry.tasks import gather_all
from tenants.object_names import CALIBRATION_KEY
from tenants.refusals.models import RefusedCall
from tenants.refusals.repository import RefusedFilter
from tenants.refusals.service import CodeCount, RefusedRequests

PAGE = 50
_EPOCH = datetime.fromtimestamp(0, UTC)
_TICK = timedelta(microseconds=1)
RAN, REFUSED = "~", "!"
"""In a URL, between the time and the id of a request's position."""
_POSITION = re.compile(r"(\d{1,16})([~!])([\x21-\x7e]{1,200})")
_OUTCOMES: Mapping[str, Outcome | None] = {"": None, "succeeded": "succeeded", "failed": "failed"}
_NO_REQUESTS = Requests([], frozenset(), None)


@dataclass(frozen=True, slots=True)
class Position:
    """A request's position in the list. Of two at the same moment, the one that was refused comes first."""

    at: datetime
    kind: str
    id: str

    @property
    def address(self) -> str:
        return f"{(self.at - _EPOCH) // _TICK}{self.kind}{self.id}"

    @property
    def below_ran(self) -> RequestPosition:
        if self.kind == RAN:
            return RequestPosition(self.at, self.id)
        return RequestPosition(self.at + _TICK, "")

    @property
    def below_refused(self) -> tuple[datetime, str]:
        return (self.at, self.id) if self.kind == REFUSED else (self.at, "")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request as the list shows it. What a refused one has no value of is empty."""

    position: Position
    path: str
    """Of its own page, below the list's."""
    model: str
    key: Label
    state: Badge
    code: str = ""
    message: str = ""
    input: int | None = None
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    """Of the output tokens."""
    first_token: str = ""
    total: str = ""
    cost: int | None = None


@dataclass(frozen=True, slots=True)
class StatusChoice:
    value: str
    title: str
    query: str
    count: int | None
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class RequestList:
    query: UsageQuery
    ranges: list[tuple[str, str, bool]]
    """(title, query, whether it is this)."""
    months: list[tuple[str, str]]
    statuses: list[StatusChoice]
    filters: list[Filter]
    chips: list[Chip]
    rows: list[RequestRow]
    next_after: str | None
    num_unlisted: int
    """Refused requests of the time range that are counted but not listed."""
    has_deleted: bool
    """Whether requests of deleted keys are in the time range."""
    leaves_out_refused: bool
    """Whether a filter by adapter leaves them out: they reached none."""


class RequestsPage:
    """Gathers the list."""

    def __init__(self, slices: UsageSlices, refused: RefusedRequests, labels: LabelLookup) -> None:
        self._slices = slices
        self._refused = refused
        self._labels = labels

    async def list(self, tenant_id: str, query: UsageQuery, after: str, may: May) -> RequestList:
        """Raises FieldError, InvalidReportQuery, DatabaseUnavailable."""
        position = _position(after)
        values = await self._slices.values(tenant_id, query.start, query.end)
        labels = await self._labels.of(tenant_id, _keys(value for value, _ in values["api_key_id"]), may)
        deleted = tuple(value for value, _ in values["api_key_id"] if labels.is_deleted(value))
        hidden = query.hidden_keys
        if not query.deleted and not query.chosen.get("key"):
            hidden += deleted
        ran, (refused, counts) = await gather_all(
            self._ran(tenant_id, query, hidden, position),
            self._refused.page(
                *(tenant_id, query.start, query.end),
                wanted=_wanted(query, hidden),
                before=None if position is None else position.below_refused,
                limit=PAGE + 1,
            ),
        )
        named = names_of(query, values) | {("key", call.key_id) for call in refused}
        named |= {("key", row.key_id) for row in ran.rows}
        labels = await self._labels.of(tenant_id, named, may)
        rows = list(
            merge(
                (_refused_row(call, labels) for call in refused),
                (_ran_row(row, labels, row.request_id in ran.reversed_ids) for row in ran.rows),
                key=lambda row: _EPOCH - row.position.at,
            )
        )
        page = rows[:PAGE]
        seen = _with_seen(values, refused)
        return RequestList(
            query=query,
            ranges=[
                (title, query.over(id).query_string, query.over(id).query_string == query.query_string)
                for id, title in RANGES.items()
            ],
            months=months_of(query),
            statuses=_statuses(query, counts),
            filters=[one for one in filters_of(query, seen, labels) if one.choices],
            chips=_status_chip(query) + chips_of(query, labels),
            rows=page,
            next_after=page[-1].position.address if len(rows) > PAGE else None,
            num_unlisted=sum(count.unlisted for count in counts),
            has_deleted=bool(deleted),
            leaves_out_refused=bool(query.chosen.get("adapter")),
        )

    async def _ran(
        self, tenant_id: str, query: UsageQuery, hidden: tuple[str, ...], position: Position | None
    ) -> Requests:
        if query.status not in _OUTCOMES:
            return _NO_REQUESTS
        return await self._slices.requests(
            *(tenant_id, query.start, query.end),
            slice=replace(query.slice, excluded_key_ids=hidden),
            outcome=_OUTCOMES[query.status],
            after=None if position is None else position.below_ran,
            limit=PAGE + 1,
        )


def _keys(ids: Iterable[str]) -> set[tuple[str, str]]:
    return {("key", id) for id in ids if id != CALIBRATION_KEY}


def _wanted(query: UsageQuery, hidden: tuple[str, ...]) -> RefusedFilter | None:
    """Returns the filter of refused calls, None if none of them can match."""
    if query.status == "succeeded" or query.chosen.get("adapter"):
        return None
    code = "" if query.status in STATUSES else query.status
    return RefusedFilter(
        status=int(code) if code.isdecimal() else None,
        code="" if code.isdecimal() else code,
        models=query.chosen.get("model", ()),
        key_ids=query.chosen.get("key", ()),
        excluded_key_ids=hidden,
        project_ids=query.chosen.get("project", ()),
        user_ids=query.chosen.get("user", ()),
        service_tiers=query.chosen.get("tier", ()),
    )


def _with_seen(
    values: Mapping[str, list[tuple[str, int]]], refused: Sequence[RefusedCall]
) -> dict[str, list[tuple[str, int]]]:
    """Adds models and keys that were only refused, of those that are shown: the ledger does not have them."""
    found = {name: list(counted) for name, counted in values.items()}
    for name, seen in (
        ("model", [call.model for call in refused]),
        ("api_key_id", [call.key_id for call in refused]),
    ):
        known = {value for value, _ in found[name]}
        found[name] += [(value, 0) for value in dict.fromkeys(seen) if value and value not in known]
    return found


def _statuses(query: UsageQuery, counts: Sequence[CodeCount]) -> list[StatusChoice]:
    titles: dict[str, tuple[str, int | None]] = {value: (title, None) for value, title in STATUSES.items()}
    for count in counts:
        _, before = titles.get(count.code, ("", 0))
        titles[count.code] = (f"{count.status} {count.code}", (before or 0) + count.refused)
    if query.status not in titles:
        titles[query.status] = (query.status, 0)
    return [
        StatusChoice(value, title, query.of_status(value).query_string, count, value == query.status)
        for value, (title, count) in titles.items()
    ]


def _status_chip(query: UsageQuery) -> list[Chip]:
    if not query.status:
        return []
    return [Chip("Status", STATUSES.get(query.status, query.status), query.of_status("").query_string)]


def _refused_row(call: RefusedCall, labels: Labels) -> RequestRow:
    position = Position(call.at, REFUSED, call.request_id)
    return RequestRow(
        position,
        f"refused/{position.address}",
        call.model or f"{call.method} {call.path}",
        labels.of("key", call.key_id),
        Badge(f"{call.status} {call.code}", "bad" if call.status >= 500 else "warn"),
        call.code,
        call.message,
    )


def _ran_row(row: UsageRecord, labels: Labels, is_reversed: bool) -> RequestRow:
    return RequestRow(
        Position(row.submitted_at, RAN, row.request_id),
        row.request_id,
        row.model or labels.of("model", "").text,
        labels.of("key", row.key_id),
        _state(row, is_reversed),
        input=row.prompt_tokens,
        cached=row.cached_tokens,
        output=row.completion_tokens,
        reasoning=row.reasoning_tokens,
        first_token=formatting.seconds(row.first_token_seconds),
        total=formatting.seconds(row.total_seconds),
        cost=row.billed,
    )


def _state(row: UsageRecord, is_reversed: bool) -> Badge:
    if is_reversed:
        return Badge("Reversed", "warn")
    if row.finish_reason is None:
        return Badge("Running", "busy")
    if row.finish_reason in ("stop", "length"):
        return Badge("200 Completed", "good")
    return Badge(state_word(row.finish_reason), "bad" if row.finish_reason == "error" else "off")


def _position(written: str) -> Position | None:
    if not written:
        return None
    found = position_of(written)
    if found is None:
        raise FieldError("after", "This page of the list doesn't exist. Start with the newest requests.")
    return found


def position_of(written: str) -> Position | None:
    """Parses a position of a URL; returns None if it is malformed."""
    found = _POSITION.fullmatch(written)
    if found is None:
        return None
    return Position(_EPOCH + int(found[1]) * _TICK, found[2], found[3])
