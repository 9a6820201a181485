"""Leases one batch to one process: renewed by a heartbeat, fenced, released.

The fencing token is the batch's `fence`, incremented by every claim. Every write goes through
`BatchLease.write`, which locks the batch's row and compares the fence: a process that stalled while another
took over can no longer change anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adapters.files.models import StoredFile
from adapters.files.repository import FileRepository
from batches.ending import end_batch
from batches.errors import BatchLeaseLost
from batches.models import Batch, BatchStatus
from batches.repository import BatchLeases, BatchRepository
from db.session import EVERY_TENANT, Database, WriteSession
from engine.protocol import Usage
from tenants.limits.kinds import Metric
from tenants.limits.repository import LimitRepository


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one line."""

    line: int
    content: str
    """Its line of the output or error file, without a line break."""
    is_failed: bool
    usage: Usage | None = None
    cost: int = 0
    """Micro-USD."""


class BatchLease:
    """The lease of one batch, held by one process. Created by `claim`.

    Its methods raise BatchLeaseLost, and DatabaseUnavailable, after which they can be called again.
    """

    def __init__(self, database: Database, batch: Batch, seconds: float) -> None:
        self.batch = batch
        """As of the last write."""
        self.fence = batch.fence
        self.seconds = seconds
        self.status = BatchStatus(batch.status)
        """As of the last heartbeat or write."""
        self._database = database

    @asynccontextmanager
    async def write(self) -> AsyncIterator[tuple[WriteSession, Batch]]:
        """Opens a transaction that commits only if this lease is the latest."""
        async with self._database.write(self.batch.tenant_id) as session:
            batch = await BatchLeases(session).hold(self.batch.id, self.fence)
            if batch is None:
                raise BatchLeaseLost(self.batch.id, self.fence)
            yield session, batch
            await session.flush()
        self.batch, self.status = batch, BatchStatus(batch.status)

    async def renew(self) -> None:
        """Extends the lease, and learns whether the batch has been cancelled."""
        async with self._database.write(self.batch.tenant_id) as session:
            status = await BatchLeases(session).renew(self.batch.id, self.fence, self.seconds)
        if status is None:
            raise BatchLeaseLost(self.batch.id, self.fence)
        self.status = status

    async def release(self) -> None:
        """Ends the lease, so that another process can take the batch at once."""
        async with self._database.write(self.batch.tenant_id) as session:
            await BatchLeases(session).release(self.batch.id, self.fence)

    async def accept(self, total: int, model: str | None) -> bool:
        """Records that all lines are valid and the batch runs; False when the tenant's limit on waiting lines
        leaves no room, or the batch has been cancelled.
        """
        async with self.write() as (session, batch):
            if batch.status != BatchStatus.VALIDATING:
                return False
            repository = BatchRepository(session, batch.tenant_id)
            limit = await LimitRepository(session, batch.tenant_id).stored(Metric.BATCH_LINES)
            if limit is not None:
                await repository.advisory_lock("batch lines")
                if await repository.enqueued_lines() + total > limit:
                    return False
            batch.total, batch.model = total, model
            batch.status, batch.in_progress_at = BatchStatus.IN_PROGRESS, datetime.now(UTC)
        return True

    async def fail(self, errors: Sequence[Mapping[str, Any]]) -> None:
        """Ends the batch because its file is not valid."""
        async with self.write() as (session, batch):
            batch.errors = [dict(error) for error in errors]
            await end_batch(session, batch, BatchStatus.FAILED)

    async def input_lost(self, error: Mapping[str, Any]) -> None:
        """Records that the input cannot be read any more: the batch fails once the results that it has are
        written. One that had none yet has failed already.
        """
        async with self.write() as (session, batch):
            batch.errors = [dict(error)]
            if batch.in_progress_at is None:
                await end_batch(session, batch, BatchStatus.FAILED)
                return
            batch.failed_at = datetime.now(UTC)
            batch.finalizing_at = batch.finalizing_at or datetime.now(UTC)
            if batch.status == BatchStatus.IN_PROGRESS:
                batch.status = BatchStatus.FINALIZING

    async def stop(self, error: Mapping[str, Any]) -> None:
        """Cancels the batch for a reason of the service."""
        async with self.write() as (_, batch):
            if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                batch.errors = [dict(error)]
                batch.status, batch.cancelling_at = BatchStatus.CANCELLING, datetime.now(UTC)

    async def begun(self) -> tuple[dict[int, datetime], set[int]]:
        """Returns when each line without a result began, and the lines with one."""
        async with self._database.read(self.batch.tenant_id) as session:
            rows = await BatchRepository(session, self.batch.tenant_id).begun(self.batch.id)
        return {line: at for line, at, done in rows if not done}, {line for line, _, done in rows if done}

    async def begin(self, lines: Collection[int]) -> dict[int, datetime]:
        """Records that these lines begin now; returns when each did. One that has begun before keeps its
        time: this can be called again when it is not known whether it was carried out.
        """
        now = datetime.now(UTC)
        async with self.write() as (session, batch):
            begun = await BatchRepository(session, batch.tenant_id).begin(batch.id, lines, now)
        return begun

    async def store(self, results: Sequence[LineResult]) -> None:
        """Stores results and counts them. A line that has a result keeps it."""
        now = datetime.now(UTC)
        rows = [
            {"line": one.line, "content": one.content, "is_failed": one.is_failed, "submitted_at": now}
            for one in results
        ]
        async with self.write() as (session, batch):
            stored = await BatchRepository(session, batch.tenant_id).store(batch.id, rows)
            for one in results:
                if one.line not in stored:
                    continue
                if one.is_failed:
                    batch.failed += 1
                else:
                    batch.completed += 1
                batch.cost += one.cost
                if one.usage is not None:
                    batch.prompt_tokens += one.usage.prompt_tokens
                    batch.cached_tokens += one.usage.cached_tokens
                    batch.reasoning_tokens += one.usage.reasoning_tokens
                    batch.completion_tokens += one.usage.completion_tokens

    async def expire(self) -> None:
        """Records that the batch ends with what is done."""
        async with self.write() as (_, batch):
            batch.expired_at = batch.expired_at or datetime.now(UTC)

    async def finalize(self) -> None:
        """Records that every line has a result and the output is written next. A batch that is being
        cancelled stays so.
        """
        async with self.write() as (_, batch):
            batch.finalizing_at = batch.finalizing_at or datetime.now(UTC)
            if batch.status == BatchStatus.IN_PROGRESS:
                batch.status = BatchStatus.FINALIZING

    async def results(self, *, failed: bool, after: int, limit: int) -> list[tuple[int, str]]:
        """Returns (line, content) of lines that failed or did not, in order, after the line `after`."""
        async with self._database.read(self.batch.tenant_id) as session:
            repository = BatchRepository(session, self.batch.tenant_id)
            rows = await repository.results(self.batch.id, failed=failed, after=after, limit=limit)
        return [(line, content or "") for line, content in rows]

    async def end(self, output: StoredFile | None, errors: StoredFile | None) -> None:
        """Ends the batch with its files, in one transaction with the files' rows."""
        async with self.write() as (session, batch):
            files = FileRepository(session, batch.tenant_id)
            for file in (output, errors):
                if file is not None:
                    files.add_own(file)
            batch.output_file_id = None if output is None else output.id
            batch.error_file_id = None if errors is None else errors.id
            await BatchRepository(session, batch.tenant_id).delete_lines(batch.id)
            if batch.cancelling_at is not None:
                await end_batch(session, batch, BatchStatus.CANCELLED)
            elif batch.expired_at is not None:
                await end_batch(session, batch, BatchStatus.EXPIRED)
            elif batch.failed_at is not None:
                await end_batch(session, batch, BatchStatus.FAILED)
            else:
                await end_batch(session, batch, BatchStatus.COMPLETED)


async def claim(
    database: Database, owner: str, *, endpoints: Collection[str], seconds: float, most_per_tenant: int
) -> BatchLease | None:
    """Takes the lease of the batch that is to run next, of those on `endpoints`; None when there is none.
    Raises DatabaseUnavailable.
    """
    async with database.write(EVERY_TENANT) as session:
        batch = await BatchLeases(session).claim(owner, endpoints, seconds, most_per_tenant)
    return None if batch is None else BatchLease(database, batch, seconds)
