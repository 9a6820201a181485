"""Writes a batch's output and error files from the results of its lines, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from adapters.files.description import FileDescription
from adapters.files.ingestion import FileIngestion
from adapters.files.models import Purpose, StoredFile
from batches.lease import BatchLease

_PAGE = 20
"""Results that are read at once: one may have megabytes."""
_MAX_BYTES = 1 << 40


async def write_outputs(lease: BatchLease, ingestion: FileIngestion) -> None:
    """Stores the files and ends the batch. What an interruption leaves in the store, the clean-up removes.
    Raises BatchLeaseLost, StorageUnavailable, DatabaseUnavailable.
    """
    output = await _file(lease, ingestion, failed=False)
    errors = await _file(lease, ingestion, failed=True)
    await lease.end(output, errors)


async def _file(lease: BatchLease, ingestion: FileIngestion, *, failed: bool) -> StoredFile | None:
    """Returns the row of a stored file, not in the database yet; None when it would be empty."""
    batch = lease.batch
    if not (batch.failed if failed else batch.completed):
        return None
    received = await ingestion.receive(_lines(lease, failed=failed), max_bytes=_MAX_BYTES, field="file")
    if not received.size:  # another attempt has ended the batch, and with it the rows
        await ingestion.discard(received)
        return None
    name = f"{batch.id}_{'error' if failed else 'output'}.jsonl"
    said = FileDescription(Purpose.BATCH_OUTPUT, name, batch.output_expires_after)
    return await ingestion.keep(batch.tenant_id, batch.created_by, said, received)


async def _lines(lease: BatchLease, *, failed: bool) -> AsyncIterator[bytes]:
    after = 0
    while page := await lease.results(failed=failed, after=after, limit=_PAGE):
        after = page[-1][0]
        yield "".join(f"{content}\n" for _, content in page).encode()
