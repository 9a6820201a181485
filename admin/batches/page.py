"""Gathers the batches pages: the list, and one batch with its progress and cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from admin.badge import Badge
from batches.models import OPEN, Batch, BatchStatus
from batches.service import BatchService

PAGE = 25
MAX_ERRORS = 20
"""Of those shown on a page."""
_STATES = {
    BatchStatus.VALIDATING: Badge("Validating", "busy"),
    BatchStatus.FAILED: Badge("Failed", "bad"),
    BatchStatus.IN_PROGRESS: Badge("In progress", "busy"),
    BatchStatus.FINALIZING: Badge("Finalizing", "busy"),
    BatchStatus.COMPLETED: Badge("Completed", "good"),
    BatchStatus.EXPIRED: Badge("Expired", "warn"),
    BatchStatus.CANCELLING: Badge("Cancelling", "busy"),
    BatchStatus.CANCELLED: Badge("Cancelled", "off"),
}


@dataclass(frozen=True)
class ErrorRow:
    line: int | None
    message: str
    code: str


@dataclass(frozen=True)
class BatchRow:
    id: str
    state: Badge
    is_open: bool
    can_cancel: bool
    endpoint: str
    model: str | None
    total: int
    completed: int
    failed: int
    share: int
    """Per cent of the lines that have a result."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: int
    """Micro-USD."""
    created_at: datetime
    created_by: str
    expires_at: datetime
    ended_at: datetime | None
    input_file_id: str
    has_output: bool
    has_errors: bool
    errors: list[ErrorRow]
    num_more_errors: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class BatchList:
    rows: list[BatchRow]
    next_after: str | None
    is_moving: bool
    """Whether one of them has not ended: the page follows."""


class BatchesPage:
    """Gathers the pages."""

    def __init__(self, batches: BatchService) -> None:
        self._batches = batches

    async def index(self, tenant_id: str, after: str | None) -> BatchList:
        """Returns a page of batches, the newest first. Raises UnknownCursor, DatabaseUnavailable."""
        found, more = await self._batches.page(tenant_id, after=after, limit=PAGE)
        rows = [_row(batch) for batch in found]
        return BatchList(rows, rows[-1].id if more else None, any(row.is_open for row in rows))

    async def one(self, tenant_id: str, batch_id: str) -> BatchRow:
        """Raises BatchNotFound, DatabaseUnavailable."""
        return _row(await self._batches.get(tenant_id, batch_id))


def _row(batch: Batch) -> BatchRow:
    status = BatchStatus(batch.status)
    errors = batch.errors or []
    return BatchRow(
        id=batch.id,
        state=_STATES[status],
        is_open=status in OPEN,
        can_cancel=status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS),
        endpoint=batch.endpoint,
        model=batch.model,
        total=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        share=100 * (batch.completed + batch.failed) // batch.total if batch.total else 0,
        input_tokens=batch.prompt_tokens,
        cached_tokens=batch.cached_tokens,
        output_tokens=batch.completion_tokens,
        reasoning_tokens=batch.reasoning_tokens,
        cost=batch.cost,
        created_at=batch.created_at,
        created_by=batch.created_by,
        expires_at=batch.expires_at,
        ended_at=batch.cancelled_at or batch.completed_at or batch.failed_at or _expired_at(batch, status),
        input_file_id=batch.input_file_id,
        has_output=batch.output_file_id is not None,
        has_errors=batch.error_file_id is not None,
        errors=[ErrorRow(one["line"], one["message"], one["code"]) for one in errors[:MAX_ERRORS]],
        num_more_errors=max(0, len(errors) - MAX_ERRORS),
        metadata=batch.details or {},
    )


def _expired_at(batch: Batch, status: BatchStatus) -> datetime | None:
    return batch.expired_at if status == BatchStatus.EXPIRED else None
