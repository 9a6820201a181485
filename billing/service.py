"""Reports a tenant's usage in the shapes of OpenAI's organization usage API, its costs, receipts and exports.

Reports read the rollups, never the ledger row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

from billing.earnings import EarningLine, EarningsRepository
from billing.models import UsageRecord
from billing.reports.buckets import USAGE_WIDTHS, BucketPage, check_groups, instant, page_of, width_of
from billing.reports.costs import CostReports
from billing.reports.grouping import COLUMNS, columns_of, filters, named
from billing.reports.receipts import Receipts
from billing.reports.slices import UsageSlices
from billing.reports.usage_exports import UsageExports
from billing.repository import UsageRepository
from billing.request_metadata.content import MetadataSealer
from db.session import Database


class UsageResult(TypedDict):
    """What was used in a bucket by one group. Fields that are not grouped by are null."""

    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    output_tokens: int
    input_cached_tokens: int
    """Input tokens that were in the prefix cache."""
    input_uncached_tokens: int
    input_audio_tokens: int
    output_audio_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None
    api_source: str | None
    adapter_id: NotRequired[str | None]
    """Only when grouped by it."""


GROUP_BYS = (*COLUMNS, "batch", "api_source")


class UsageReports:
    """Reports the usage of one tenant per call."""

    def __init__(self, database: Database, sealer: MetadataSealer | None = None) -> None:
        """`sealer`: decrypts the metadata of requests, for receipts."""
        self._database = database
        self.costs = CostReports(database)
        self.receipts = Receipts(database, sealer)
        self.exports = UsageExports(database)
        self.slices = UsageSlices(database)

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
        adapter_ids: Sequence[str] | None = None,
        batch: bool | None = None,
        page: str | None = None,
    ) -> BucketPage[UsageResult]:
        """Returns a page of buckets with the tenant's usage in each; a bucket without usage has no results.

        Times are Unix seconds. Usage counts at the minute in which its request was submitted: `start_time` is
        rounded down to a minute, `end_time` (exclusive, default now) up. Buckets begin at whole UTC minutes,
        hours or days, but the first begins at `start_time` and the last ends at `end_time`, so each covers
        exactly the times it states. Running requests count with their usage so far; reversals count negative
        at the time of the reversal. Raises InvalidReportQuery, DatabaseUnavailable.
        """
        width = width_of(bucket_width, USAGE_WIDTHS)
        check_groups(group_by, GROUP_BYS)
        wanted = filters(
            api_key_ids=api_key_ids,
            models=models,
            project_ids=project_ids,
            user_ids=user_ids,
            adapter_ids=adapter_ids,
        )
        report_page = page_of(width, start_time, end_time, limit, page)
        rows: Sequence[Any] = []
        if report_page.spans and batch is not True:  # no request belongs to a batch
            async with self._database.read(tenant_id) as session:
                rows = await UsageRepository(session, tenant_id).sums(
                    report_page.start,
                    report_page.end,
                    unit=width.unit,
                    group_by=columns_of(group_by),
                    **wanted,
                )
        return report_page.filled(_results(rows, group_by))

    async def earned(self, tenant_id: str, start: datetime, end: datetime) -> list[EarningLine]:
        """Returns what the tenant earned in [start, end), whole UTC days, with the adapters that it shares.
        Raises DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            return await EarningsRepository(session, tenant_id).of(start, end)

    async def record(self, tenant_id: str, request_id: str, *, submitted_at: float) -> UsageRecord | None:
        """Returns the ledger row of a request submitted within a second of `submitted_at` (Unix seconds)."""
        async with self._database.read(tenant_id) as session:
            repository = UsageRepository(session, tenant_id)
            return await repository.record(request_id, instant(submitted_at - 1), instant(submitted_at + 1))

    async def records(
        self, tenant_id: str, *, start: float, end: float, limit: int = 1000
    ) -> list[UsageRecord]:
        """Returns at most `limit` ledger rows submitted in [start, end), Unix seconds, the oldest first."""
        async with self._database.read(tenant_id) as session:
            repository = UsageRepository(session, tenant_id)
            return await repository.records(instant(start), instant(end), limit=limit)


def _results(rows: Sequence[Any], group_by: Sequence[str]) -> Iterator[tuple[datetime, UsageResult]]:
    """Yields the aggregates of each bucket. Fields not grouped by are null; `adapter_id`, which OpenAI does
    not have, is absent.
    """
    for row in rows:
        names = named(row, group_by)
        result: UsageResult = {
            "object": "organization.usage.completions.result",
            "input_tokens": row.prompt_tokens,
            "output_tokens": row.completion_tokens,
            "input_cached_tokens": row.cached_tokens,
            "input_uncached_tokens": row.prompt_tokens - row.cached_tokens,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "num_model_requests": row.num_requests,
            "project_id": names.get("project_id"),
            "user_id": names.get("user_id"),
            "api_key_id": names.get("api_key_id"),
            "model": names.get("model"),
            "batch": False if "batch" in group_by else None,
            "service_tier": names.get("service_tier"),
            "api_source": "unlabeled" if "api_source" in group_by else None,
        }
        if "adapter_id" in group_by:
            result["adapter_id"] = names["adapter_id"]
        yield row.bucket, result
