"""Creates and cancels batches, and lists them. Processes that hold their leases run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from adapters.files.description import MAX_LIFETIME, MIN_LIFETIME
from adapters.files.errors import FileNotFound
from adapters.files.models import Purpose
from adapters.files.repository import FileRepository
from adapters.storage.errors import ObjectNotFound, StorageUnavailable
from adapters.storage.objects import ObjectStore
from batches.ending import end_batch
from batches.errors import BatchFinished, BatchNotFound, InvalidBatch, TooManyBatches
from batches.models import OPEN, Batch, BatchStatus
from batches.repository import BatchRepository
from db.base import new_id
from db.session import Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog

log = structlog.get_logger(__name__)
MAX_INPUT_BYTES = 200 * 1024 * 1024
MAX_OPEN = 200
"""Unfinished batches of a tenant."""
WINDOW = timedelta(hours=24)
MAX_METADATA = 16
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a caller asks for."""

    input_file_id: str
    endpoint: str
    metadata: Mapping[str, str] | None = None
    output_expires_after: int | None = None
    """Seconds."""


class BatchService:
    """Batches of all tenants, with inputs in one object store."""

    def __init__(self, database: Database, store: ObjectStore) -> None:
        self._database = database
        self._store = store

    async def create(self, tenant_id: str, created_by: str, new: NewBatch, by: Actor) -> Batch:
        """Creates a batch over a copy of the file, so that the file can be deleted while the batch runs.
        `created_by`: id of the key or the user whose requests the lines are.

        Raises:
            FileNotFound, InvalidBatch, TooManyBatches
            DatabaseUnavailable
        """
        _check(new)
        now = datetime.now(UTC)
        async with self._database.read(tenant_id) as session:
            file = await FileRepository(session, tenant_id).file(new.input_file_id, now)
        if file is None:
            raise FileNotFound(new.input_file_id)
        if file.purpose != Purpose.BATCH:
            raise InvalidBatch(
                "input_file_id",
                f"The file's purpose is '{file.purpose}'; upload it with the purpose 'batch'.",
            )
        if file.size > MAX_INPUT_BYTES:
            raise InvalidBatch(
                "input_file_id", f"The file has {file.size} bytes; a batch takes at most {MAX_INPUT_BYTES}."
            )
        batch = Batch(
            id=new_id("batch"),
            tenant_id=tenant_id,
            created_by=created_by,
            endpoint=new.endpoint,
            status=BatchStatus.VALIDATING,
            details=None if new.metadata is None else dict(new.metadata),
            input_file_id=file.id,
            input_size=file.size,
            output_expires_after=new.output_expires_after,
            created_at=now,
            expires_at=now + WINDOW,
        )
        batch.input_key = f"tenants/{tenant_id}/batches/{batch.id}/input"
        async with self._database.write(tenant_id) as session:
            repository = BatchRepository(session, tenant_id)
            await repository.advisory_lock("batches")
            if await repository.num_open() >= MAX_OPEN:
                raise TooManyBatches(MAX_OPEN)
            repository.add_own(batch)
            details = {"endpoint": batch.endpoint, "input_file_id": file.id}
            await AuditLog.record(session, tenant_id, by, "batch.created", ("batch", batch.id), details)
            await session.flush()
            await session.refresh(batch)
        # After the row, so that no copy is without its batch.
        try:
            await self._store.copy(file.object_key, batch.input_key)
        except (StorageUnavailable, ObjectNotFound) as error:
            log.warning("input is copied when the batch is checked", batch_id=batch.id, error=str(error))
        return batch

    async def get(self, tenant_id: str, batch_id: str) -> Batch:
        """Returns a batch. Raises BatchNotFound."""
        async with self._database.read(tenant_id) as session:
            batch = await BatchRepository(session, tenant_id).find(batch_id)
        if batch is None:
            raise BatchNotFound(batch_id)
        return batch

    async def page(
        self, tenant_id: str, *, after: str | None, limit: int, newest_first: bool = True
    ) -> tuple[list[Batch], bool]:
        """Returns at most `limit` batches after the batch `after`, and whether there are more. Raises
        UnknownCursor.
        """
        async with self._database.read(tenant_id) as session:
            batches = await BatchRepository(session, tenant_id).page(
                after=after, limit=limit + 1, newest_first=newest_first
            )
        return batches[:limit], len(batches) > limit

    async def waiting_lines(self, tenant_id: str) -> int:
        """Returns the number of lines without a result, of all batches that run."""
        async with self._database.read(tenant_id) as session:
            return await BatchRepository(session, tenant_id).enqueued_lines()

    async def cancel(self, tenant_id: str, batch_id: str, by: Actor) -> Batch:
        """Cancels a batch: no further line begins, and what is answered is returned. Has no further effect on
        a batch that is being cancelled, or whose output is being written. Raises BatchNotFound,
        BatchFinished.
        """
        async with self._database.write(tenant_id) as session:
            batch = await BatchRepository(session, tenant_id).find(batch_id, lock=True)
            if batch is None:
                raise BatchNotFound(batch_id)
            if batch.status not in OPEN:
                raise BatchFinished(batch_id, batch.status)
            if batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                batch.status, batch.cancelling_at = BatchStatus.CANCELLING, datetime.now(UTC)
                await AuditLog.record(session, tenant_id, by, "batch.cancelled", ("batch", batch_id))
                if batch.lease_owner is None and batch.in_progress_at is None:
                    await end_batch(session, batch, BatchStatus.CANCELLED)
        return batch


def _check(new: NewBatch) -> None:
    """Raises InvalidBatch."""
    seconds = new.output_expires_after
    if seconds is not None and not MIN_LIFETIME <= seconds <= MAX_LIFETIME:
        raise InvalidBatch(
            "output_expires_after.seconds",
            f"'output_expires_after.seconds' must be from {MIN_LIFETIME} to {MAX_LIFETIME}, not {seconds}.",
        )
    metadata = new.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise InvalidBatch("metadata", f"'metadata' has {len(metadata)} keys; at most {MAX_METADATA}.")
    for key, value in metadata.items():
        if not 1 <= len(key) <= MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidBatch(
                "metadata",
                f"A key of 'metadata' has 1 to {MAX_METADATA_KEY} characters, a value at most "
                f"{MAX_METADATA_VALUE}.",
            )
        if "\x00" in key or "\x00" in value:
            raise InvalidBatch("metadata", "'metadata' must not contain the character U+0000.")
