"""Divides a time range into buckets and pages, as OpenAI's organization reports do."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, TypedDict, TypeVar

from billing.errors import InvalidReportQuery
from db.rollup_intervals import Unit

ResultT = TypeVar("ResultT")


class Bucket(TypedDict, Generic[ResultT]):
    """What there is of a span of time."""

    object: Literal["bucket"]
    start_time: int
    """Unix seconds."""
    end_time: int
    """Unix seconds, exclusive."""
    results: list[ResultT]
    """One for each group; empty when nothing was used."""


class BucketPage(TypedDict, Generic[ResultT]):
    """A page of time buckets."""

    object: Literal["page"]
    data: list[Bucket[ResultT]]
    has_more: bool
    """Whether there is another page."""
    next_page: str | None
    """`page` of the next page."""


MAX_TIME = 4_102_444_800
"""Unix time of 2100-01-01."""
MAX_FILTER = 1000
MAX_VALUE_LEN = 512


@dataclass(frozen=True, slots=True)
class Width:
    """The width of a bucket, and how many buckets a page may have."""

    seconds: int
    unit: Unit
    default_limit: int
    max_limit: int


USAGE_WIDTHS: dict[str, Width] = {
    "1m": Width(60, "minute", 60, 1440),
    "1h": Width(3600, "hour", 24, 168),
    "1d": Width(86400, "day", 7, 31),
}
COST_WIDTHS: dict[str, Width] = USAGE_WIDTHS | {"1d": Width(86400, "day", 7, 180)}


@dataclass(frozen=True, slots=True)
class Page:
    """The buckets of one page as (start, end) in Unix seconds, without gap or overlap."""

    width: Width
    spans: Sequence[tuple[int, int]]
    more: bool
    """Whether more pages follow."""

    @property
    def start(self) -> datetime:
        return instant(self.spans[0][0])

    @property
    def end(self) -> datetime:
        return instant(self.spans[-1][1])

    def filled(self, results: Iterable[tuple[datetime, ResultT]]) -> BucketPage[ResultT]:
        """Returns the page's JSON, with each result in the bucket that contains its time. A bucket without
        results is included, empty.
        """
        by_bucket: dict[int, list[ResultT]] = {}
        for begins, result in results:
            by_bucket.setdefault(int(begins.timestamp()), []).append(result)
        return {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": start,
                    "end_time": end,
                    "results": by_bucket.get(start - start % self.width.seconds, []),
                }
                for start, end in self.spans
            ],
            "has_more": self.more,
            "next_page": _page_of(self.spans[-1][1]) if self.more else None,
        }


def width_of(name: str, widths: dict[str, Width]) -> Width:
    """Returns the width of that name. Raises InvalidReportQuery."""
    width = widths.get(name)
    if width is None:
        raise InvalidReportQuery("bucket_width", f"must be one of {', '.join(widths)}")
    return width


def page_of(
    width: Width, start_time: int, end_time: int | None, limit: int | None = None, page: str | None = None
) -> Page:
    """Returns the page of [start_time, end_time), Unix seconds, that `page` names, or the first.

    Times are whole minutes: `start_time` is rounded down, `end_time` (default now) up. Buckets begin at whole
    UTC minutes, hours or days, but the first begins at `start_time` and the last ends at `end_time`. Raises
    InvalidReportQuery.
    """
    if limit is None:
        limit = width.default_limit
    if not 1 <= limit <= width.max_limit:
        raise InvalidReportQuery("limit", f"must be between 1 and {width.max_limit} for this bucket_width")
    start, end = whole_minutes(start_time, end_time)
    if page is not None:
        resumed = _time_of(page)
        if not start <= resumed < end or resumed % width.seconds:
            raise InvalidReportQuery("page", "is not a page of this query")
        start = resumed
    spans: list[tuple[int, int]] = []
    while start < end and len(spans) < limit:
        boundary = min(start - start % width.seconds + width.seconds, end)
        spans.append((start, boundary))
        start = boundary
    return Page(width, spans, start < end)


def whole_minutes(start_time: int, end_time: int | None) -> tuple[int, int]:
    """Returns the whole minutes that [start_time, end_time) touches; without an end, until now. Raises
    InvalidReportQuery.
    """
    if not 0 <= start_time <= MAX_TIME:
        raise InvalidReportQuery("start_time", "must be Unix seconds")
    end = int(time.time()) + 1 if end_time is None else end_time
    if not 0 <= end <= MAX_TIME:
        raise InvalidReportQuery("end_time", "must be Unix seconds")
    if end_time is not None and end_time <= start_time:
        raise InvalidReportQuery("end_time", "must be after start_time")
    return start_time - start_time % 60, end + -end % 60


def check_groups(group_by: Sequence[str], known: Sequence[str]) -> None:
    """Raises InvalidReportQuery for a name that cannot be grouped by."""
    for name in group_by:
        if name not in known:
            raise InvalidReportQuery("group_by", f"must be among {', '.join(known)}")


def check_filters(**filters: Sequence[str] | None) -> None:
    """Raises InvalidReportQuery naming a filter with invalid values."""
    for field, values in filters.items():
        if values is None:
            continue
        if len(values) > MAX_FILTER:
            raise InvalidReportQuery(field, f"has more than {MAX_FILTER} values")
        if any("\x00" in value for value in values):
            raise InvalidReportQuery(field, "has a zero byte")
        if any(len(value) > MAX_VALUE_LEN for value in values):
            raise InvalidReportQuery(field, f"has a value of more than {MAX_VALUE_LEN} characters")


def instant(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)


def _page_of(start: int) -> str:
    return "page_" + base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")


def _time_of(page: str) -> int:
    prefix, _, encoded = page.partition("_")
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars="-_", validate=True).decode(
            "ascii"
        )
    except (binascii.Error, ValueError):
        text = ""
    if prefix != "page" or not text.isdigit() or len(text) > 12:
        raise InvalidReportQuery("page", "is not a page of this query")
    return int(text)
