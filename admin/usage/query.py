"""Parses a view of usage from a URL and writes it into one: dates, grouping, metric and filters."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal, Protocol
from urllib.parse import quote, quote_plus

from admin.web.form_errors import FieldError
from admin.web.sorting import Column, Sort, read_sort
from billing.reports.slices import Slice
from db.rollup_intervals import Unit
from tenants.object_names import CALIBRATION_KEY

Step = Literal["hour", "day", "month"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A property of requests that usage is grouped and filtered by."""

    id: str
    """Its name in URLs."""
    title: str
    noun: str
    column: str
    """Its name in OpenAI's API."""
    filter: str
    """Its field of a `Slice`."""


DIMENSIONS = (
    Dimension("project", "Project", "project", "project_id", "project_ids"),
    Dimension("user", "Member", "member", "user_id", "user_ids"),
    Dimension("key", "API key", "API key", "api_key_id", "key_ids"),
    Dimension("model", "Model", "model", "model", "models"),
    Dimension("adapter", "Adapter", "adapter", "adapter_id", "adapter_ids"),
    Dimension("tier", "Service tier", "service tier", "service_tier", "service_tiers"),
)
BY_ID = {one.id: one for one in DIMENSIONS}
NONE = "none"
"""The value, in a URL, of requests without a project, an adapter, and so on."""
MEASURES = ("tokens", "requests", "cost")
RANGES = {"today": "Today", "7d": "7 days", "30d": "30 days", "month": "This month"}
DEFAULT_RANGE = "30d"
MAX_DAYS = 366
MAX_VALUES = 100
_MAX_VALUE_LEN = 512
_HOURS_UP_TO, _DAYS_UP_TO = 2, 92
_STATUS = re.compile(r"[a-z0-9_]{3,60}")
_FIRST, _LAST = date(2000, 1, 1), date(2099, 12, 31)
SORTABLE = (
    Column("", "name"),
    *(
        Column(title, title.lower(), is_number=True, starts_descending=True)
        for title in ("Requests", "Input", "Cached", "Output", "Cost", "Share")
    ),
)
"""Columns of the table; the first has the title of what is grouped by."""
STATUSES = {"": "All", "succeeded": "Succeeded", "failed": "Refused or failed"}
"""Requests by how they ended. Besides these, a request can have a status code or an error's code."""


class Params(Protocol):
    """Query parameters of a URL."""

    def get(self, name: str, default: str) -> Any: ...
    def getlist(self, name: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """One view of usage."""

    today: date
    range: str
    """`today`, `7d`, `30d`, `month` (this one, or the one that `first` is in), or `days`."""
    first: date
    last: date
    """Inclusive."""
    group: str = ""
    show: str = MEASURES[0]
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By dimension, the values to include, as the ledger has them."""
    sort: Sort | None = None
    """Order of the table's rows."""
    hour: int | None = None
    """Only this hour of a single day. None: all hours."""
    status: str = ""
    """Of the list of requests: one of `STATUSES`, an HTTP status, or the code of an error."""
    calibration: bool = False
    """Whether to include requests that calibrated adapters."""
    deleted: bool = False
    """Whether the list of requests includes those of deleted keys."""

    @property
    def num_days(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def step(self) -> Step:
        if self.num_days <= _HOURS_UP_TO:
            return "hour"
        return "day" if self.num_days <= _DAYS_UP_TO else "month"

    @property
    def unit(self) -> Unit:
        """The width of the rollup rows that the steps add up."""
        return "hour" if self.step == "hour" else "day"

    @property
    def start(self) -> datetime:
        return midnight(self.first) + timedelta(hours=self.hour or 0)

    @property
    def end(self) -> datetime:
        if self.hour is not None:
            return self.start + timedelta(hours=1)
        return midnight(self.last + timedelta(days=1))

    @property
    def days_words(self) -> str:
        if self.hour is not None:
            return f"{day_words(self.first)}, {self.hour:02d}:00 to {self.hour + 1:02d}:00"
        if self.first == self.last:
            return day_words(self.first)
        first = day_words(self.first)
        if self.first.year == self.last.year:
            first = first.partition(",")[0]
        return f"{first} to {day_words(self.last)}"

    @property
    def slice(self) -> Slice:
        chosen = {BY_ID[id].filter: values for id, values in self.chosen.items() if values}
        return Slice(**chosen, excluded_key_ids=self.hidden_keys)

    @property
    def hidden_keys(self) -> tuple[str, ...]:
        """Keys whose requests are excluded, unless keys are chosen."""
        return () if self.calibration or self.chosen.get("key") else (CALIBRATION_KEY,)

    @property
    def is_filtered(self) -> bool:
        return any(self.chosen.values()) or bool(self.status)

    # Other views ------------------------------------------------------------------------------------------

    def over(self, range: str) -> UsageQuery:
        first, last = _span_of(range, self.today)
        return replace(self, first=first, last=last, range=range, hour=None)

    def of_days(self, first: date, last: date) -> UsageQuery:
        return replace(self, range="days", first=first, last=last, hour=None)

    def of_month(self, month: date) -> UsageQuery:
        last = month.replace(day=calendar.monthrange(month.year, month.month)[1])
        return replace(self, range="month", first=month.replace(day=1), last=last, hour=None)

    def of_hour(self, at: datetime) -> UsageQuery:
        return replace(self.of_days(at.date(), at.date()), hour=at.hour)

    def only(self, dimension: str, value: str) -> UsageQuery:
        """Narrows to one value of a dimension, and no longer groups by it."""
        group = "" if self.group == dimension else self.group
        return replace(self, chosen={**self.chosen, dimension: (value,)}, group=group)

    def without(self, dimension: str, value: str) -> UsageQuery:
        left = tuple(one for one in self.chosen.get(dimension, ()) if one != value)
        return replace(self, chosen={**self.chosen, dimension: left})

    def grouped(self, dimension: str) -> UsageQuery:
        return replace(self, group=dimension)

    def showing(self, measure: str) -> UsageQuery:
        return replace(self, show=measure)

    def sorted_by(self, sort: str) -> UsageQuery:
        return replace(self, sort=read_sort(sort, SORTABLE))

    def unfiltered(self) -> UsageQuery:
        return replace(self, chosen={}, status="")

    def of_status(self, status: str) -> UsageQuery:
        return replace(self, status=status)

    def with_calibration(self, shown: bool) -> UsageQuery:
        return replace(self, calibration=shown)

    def with_deleted(self, shown: bool) -> UsageQuery:
        return replace(self, deleted=shown)

    def at_hour(self, hour: int | None) -> UsageQuery:
        return replace(self, hour=hour)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The URL's parameters, but for defaults."""
        found: list[tuple[str, str]] = []
        if self.range != DEFAULT_RANGE:
            found.append(("range", self.range))
        if self.range == "days":
            found += [("from", self.first.isoformat()), ("to", self.last.isoformat())]
        if self.range == "month" and (self.first.year, self.first.month) != (
            self.today.year,
            self.today.month,
        ):
            found.append(("month", f"{self.first:%Y-%m}"))
        if self.group:
            found.append(("group", self.group))
        if self.show != MEASURES[0]:
            found.append(("show", self.show))
        if self.sort is not None:
            found.append(("sort", str(self.sort)))
        for id in BY_ID:
            found += [(id, value or NONE) for value in self.chosen.get(id, ())]
        if self.hour is not None:
            found.append(("hour", str(self.hour)))
        if self.status:
            found.append(("status", self.status))
        found += [(name, "1") for name in ("calibration", "deleted") if getattr(self, name)]
        return found

    @property
    def query_string(self) -> str:
        return "&".join(f"{name}={quote_plus(value)}" for name, value in self.fields)


def read(params: Params, today: date) -> UsageQuery:
    """Parses a URL's parameters. Raises FieldError naming the field."""
    range = params.get("range", "") or ("month" if params.get("month", "") else DEFAULT_RANGE)
    if range == "days" or (range not in RANGES and (params.get("from", "") or params.get("to", ""))):
        query = UsageQuery(today, "days", *_days(params.get("from", ""), params.get("to", ""), today))
    elif range == "month" and params.get("month", ""):
        query = UsageQuery(today, range, today, today).of_month(_month(params.get("month", "")))
    elif range in RANGES:
        query = UsageQuery(today, range, *_span_of(range, today))
    else:
        raise FieldError("range", f"Unknown date range. Choose one of {', '.join(RANGES.values())}.")
    group, show = params.get("group", ""), params.get("show", "") or MEASURES[0]
    if group and group not in BY_ID:
        raise FieldError("group", "Usage can't be grouped by this.")
    if show not in MEASURES:
        raise FieldError("show", "Unknown metric.")
    hour = params.get("hour", "")
    if hour and not (hour.isdecimal() and int(hour) < 24 and query.first == query.last):
        raise FieldError("hour", "Choose an hour of a single day.")
    status = params.get("status", "")
    if status not in STATUSES and _STATUS.fullmatch(status) is None:
        raise FieldError("status", "Unknown status. Choose a status, or enter a code such as 429.")
    chosen = {id: _values(id, params.getlist(id)) for id in BY_ID}
    return replace(
        query,
        group=group,
        show=show,
        sort=read_sort(params.get("sort", ""), SORTABLE),
        hour=int(hour) if hour else None,
        status=status,
        calibration=bool(params.get("calibration", "")),
        deleted=bool(params.get("deleted", "")),
        chosen={id: values for id, values in chosen.items() if values},
    )


def default(today: date) -> UsageQuery:
    return UsageQuery(today, DEFAULT_RANGE, *_span_of(DEFAULT_RANGE, today))


def quoted(id: str) -> str:
    """As a piece of a path."""
    return quote(id[:200], safe="")


def midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def day_words(day: date) -> str:
    return f"{day:%b} {day.day}, {day.year}"


def _span_of(range: str, today: date) -> tuple[date, date]:
    if range == "month":
        last = today.replace(day=calendar.monthrange(today.year, today.month)[1])
        return today.replace(day=1), last
    num_days = {"today": 1, "7d": 7, "30d": 30}[range]
    return today - timedelta(days=num_days - 1), today


def _days(first: str, last: str, today: date) -> tuple[date, date]:
    begins = _day("from", first or last)
    ends = _day("to", last) if last else min(today, _LAST) if begins <= today else begins
    if ends < begins:
        raise FieldError("to", "The end date is before the start date.")
    if (ends - begins).days >= MAX_DAYS:
        raise FieldError("to", f"Choose at most {MAX_DAYS} days.")
    return begins, ends


def _day(name: str, written: str) -> date:
    try:
        day = date.fromisoformat(written)
    except ValueError:
        raise FieldError(name, "Enter a date such as 2026-01-31.") from None
    if not _FIRST <= day <= _LAST:
        raise FieldError(name, "There's no usage on this date.")
    return day


def _month(written: str) -> date:
    try:
        month = datetime.strptime(written, "%Y-%m").date()
    except ValueError:
        raise FieldError("month", "Enter a month such as 2026-01.") from None
    if not _FIRST <= month <= _LAST:
        raise FieldError("month", "There's no usage in this month.")
    return month


def _values(id: str, written: Sequence[str]) -> tuple[str, ...]:
    values = tuple(dict.fromkeys(value for value in written if value))
    if len(values) > MAX_VALUES:
        raise FieldError(id, f"Choose at most {MAX_VALUES} values.")
    if any("\x00" in value or len(value) > _MAX_VALUE_LEN for value in values):
        raise FieldError(id, "Invalid value.")
    return tuple("" if value == NONE else value for value in values)
