"""Ends a batch: its last status, and the event that tells its tenant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from batches.models import Batch, BatchStatus
from billing.notifications.events import BATCH_CANCELLED, BATCH_COMPLETED, BATCH_EXPIRED, BATCH_FAILED
from billing.notifications.publishing import publish
from db.session import WriteSession

_EVENTS = {
    BatchStatus.COMPLETED: BATCH_COMPLETED,
    BatchStatus.FAILED: BATCH_FAILED,
    BatchStatus.EXPIRED: BATCH_EXPIRED,
    BatchStatus.CANCELLED: BATCH_CANCELLED,
}
Ended = Literal[BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED]


async def end_batch(session: WriteSession, batch: Batch, status: Ended) -> None:
    """Ends `batch`, a locked row, in its transaction, and publishes the event of this status."""
    now = datetime.now(UTC)
    batch.status = status
    batch.lease_owner = batch.lease_until = None
    setattr(batch, f"{status.value}_at", now)
    data = {
        "id": batch.id,
        "total": batch.total,
        "completed": batch.completed,
        "failed": batch.failed,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
    }
    await publish(session, batch.tenant_id, _EVENTS[status], data, key=f"batch:{batch.id}", now=now)
