"""Reports on usage, in the shapes of OpenAI's organization usage API. Reads the rollups, never the ledger row
by row.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from billing.errors import InvalidReportQuery
from billing.models import UsageRecord
from billing.repository import UsageRepository
from db.session import Database

BucketWidth = Literal["1m", "1h", "1d"]
GroupBy = Literal["project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source"]
GROUP_BYS: tuple[GroupBy, ...] = get_args(GroupBy)


@dataclass(frozen=True, slots=True)
class _Width:
    seconds: int
    unit: str
    """In the words of PostgreSQL's date_trunc."""
    default_limit: int
    max_limit: int


_WIDTHS: dict[str, _Width] = {
    "1m": _Width(60, "minute", 60, 1440),
    "1h": _Width(3600, "hour", 24, 168),
    "1d": _Width(86400, "day", 7, 31),
}
_COLUMNS = {"api_key_id": "key_id", "model": "model", "service_tier": "service_tier"}
"""What can be grouped by, and the rollup's column of it. The other fields are the same for every request
here.
"""
_MAX_TIME = 4_102_444_800
_MAX_FILTER = 1000


class UsageReports:
    """One tenant's usage at a time, however many ask."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def completions(
        self,
        tenant_id: str,
        *,
        start_time: int,
        end_time: int | None = None,
        bucket_width: str = "1d",
        limit: int | None = None,
        group_by: Sequence[str] = (),
        api_key_ids: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        project_ids: Sequence[str] | None = None,
        user_ids: Sequence[str] | None = None,
        batch: bool | None = None,
        page: str | None = None,
    ) -> dict[str, Any]:
        """A page of buckets with what the tenant used in each; a bucket without usage is there, with no
        results.

        Times are Unix seconds; usage counts where its request was submitted, to the minute: `start_time` is
        taken down to its minute, `end_time` (exclusive, now when absent) up. Buckets begin at whole UTC
        minutes, hours or days, but the first at `start_time` and the last ends at `end_time`: each says
        exactly what it holds. Requests still running count with what they used so far. Raises
        InvalidReportQuery, DatabaseUnavailable.
        """
        width = _WIDTHS.get(bucket_width)
        if width is None:
            raise InvalidReportQuery("bucket_width", f"must be one of {', '.join(_WIDTHS)}")
        for name in group_by:
            if name not in GROUP_BYS:
                raise InvalidReportQuery("group_by", f"must be among {', '.join(GROUP_BYS)}")
        for field, values in (
            ("api_key_ids", api_key_ids),
            ("models", models),
            ("project_ids", project_ids),
            ("user_ids", user_ids),
        ):
            _check_filter(field, values)
        spans, more = _spans(width, start_time, end_time, limit, page)
        columns = [column for name, column in _COLUMNS.items() if name in group_by]
        # No request belongs to a project, a user or a batch: asking for some finds none.
        nothing = bool(project_ids) or bool(user_ids) or batch is True or not spans
        rows: Sequence[Any] = []
        if not nothing:
            async with self._database.read(tenant_id) as session:
                rows = await UsageRepository(session, tenant_id).sums(
                    _instant(spans[0][0]),
                    _instant(spans[-1][1]),
                    unit=width.unit,
                    group_by=columns,
                    key_ids=api_key_ids,
                    models=models,
                )
        results: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            bucket = int(row.bucket.timestamp())
            results.setdefault(bucket, []).append(_result(row, columns, group_by))
        data = [
            {
                "object": "bucket",
                "start_time": start,
                "end_time": end,
                "results": results.get(start - start % width.seconds, []),
            }
            for start, end in spans
        ]
        return {
            "object": "page",
            "data": data,
            "has_more": more,
            "next_page": _page_of(spans[-1][1]) if more else None,
        }

    async def record(self, tenant_id: str, request_id: str, *, submitted_at: float) -> UsageRecord | None:
        """The ledger's row of one request, submitted within a second of `submitted_at` (Unix seconds)."""
        async with self._database.read(tenant_id) as session:
            repository = UsageRepository(session, tenant_id)
            return await repository.record(request_id, _instant(submitted_at - 1), _instant(submitted_at + 1))

    async def records(
        self, tenant_id: str, *, start: float, end: float, limit: int = 1000
    ) -> list[UsageRecord]:
        """Ledger rows submitted in [start, end), Unix seconds, oldest first, at most `limit`."""
        async with self._database.read(tenant_id) as session:
            repository = UsageRepository(session, tenant_id)
            return await repository.records(_instant(start), _instant(end), limit=limit)


def _spans(
    width: _Width, start_time: int, end_time: int | None, limit: int | None, page: str | None
) -> tuple[list[tuple[int, int]], bool]:
    """The (start, end) of each bucket on this page, and whether more follow."""
    if limit is None:
        limit = width.default_limit
    if not 1 <= limit <= width.max_limit:
        raise InvalidReportQuery("limit", f"must be between 1 and {width.max_limit} for this bucket_width")
    if not 0 <= start_time <= _MAX_TIME:
        raise InvalidReportQuery("start_time", "must be Unix seconds")
    end = int(time.time()) + 1 if end_time is None else end_time
    if not 0 <= end <= _MAX_TIME:
        raise InvalidReportQuery("end_time", "must be Unix seconds")
    if end_time is not None and end_time <= start_time:
        raise InvalidReportQuery("end_time", "must be after start_time")
    start = start_time - start_time % 60
    end += -end % 60
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
    return spans, start < end


def _result(row: Any, columns: Sequence[str], group_by: Sequence[str]) -> dict[str, Any]:
    """One aggregate. Fields not grouped by are null, as are projects and users, which do not exist here."""
    grouped = {name: getattr(row, column) or None for name, column in _COLUMNS.items() if column in columns}
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": int(row.prompt_tokens),
        "output_tokens": int(row.completion_tokens),
        "input_cached_tokens": int(row.cached_tokens),
        "input_uncached_tokens": int(row.prompt_tokens - row.cached_tokens),
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": int(row.num_requests),
        "project_id": None,
        "user_id": None,
        "api_key_id": grouped.get("api_key_id"),
        "model": grouped.get("model"),
        "batch": False if "batch" in group_by else None,
        "service_tier": grouped.get("service_tier"),
        "api_source": "unlabeled" if "api_source" in group_by else None,
    }


def _check_filter(field: str, values: Sequence[str] | None) -> None:
    if values is None:
        return
    if len(values) > _MAX_FILTER:
        raise InvalidReportQuery(field, f"has more than {_MAX_FILTER} values")
    if any("\x00" in value for value in values):
        raise InvalidReportQuery(field, "has a zero byte")


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


def _instant(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)
