"""Takes in a file's bytes: receives them on this machine, inspects them in the sandbox, stores them as an
object.

The order (bytes, inspection, object, row) ensures that no row exists without its object. An interruption
leaves an orphaned object, which the clean-up removes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog

from adapters.files.description import FileDescription, FileKind
from adapters.files.errors import FileTooLarge, InvalidFile
from adapters.files.models import StoredFile
from adapters.storage.errors import StorageUnavailable
from adapters.storage.objects import ObjectStore
from adapters.storage.receiving import Received, TooManyBytes, fresh_path, on_disk, receive
from db.base import new_id

log = structlog.get_logger(__name__)


class FileInspector(Protocol):
    """Checks the format of one file in isolation; implemented by `adapters.inspection.Sandbox`."""

    async def check_file(self, path: Path, kind: FileKind, *, owner: str) -> None: ...


def now() -> datetime:
    return datetime.now(UTC)


class FileIngestion:
    """Receives and stores files for `FileService` and `UploadService`."""

    def __init__(self, store: ObjectStore, inspector: FileInspector) -> None:
        self.store = store
        self._inspector = inspector

    async def receive(
        self, stream: AsyncIterator[bytes] | bytes, *, max_bytes: int, field: str, md5: bool = False
    ) -> Received:
        """Writes the stream to a file on this machine and computes its digest; `discard` or `keep` the
        result.

        Raises:
            FileTooLarge: the stream is longer than `max_bytes`.
            StorageUnavailable: the disk is full or fails.
        """
        try:
            return await receive(stream, fresh_path(self.store.scratch), max_bytes=max_bytes, md5=md5)
        except TooManyBytes:
            raise FileTooLarge(field, max_bytes) from None
        except OSError as error:
            raise StorageUnavailable(f"scratch: {error.strerror or error}") from error

    async def discard(self, received: Received) -> None:
        with contextlib.suppress(OSError):  # the clean-up removes it
            await asyncio.shield(on_disk(received.path.unlink, True))

    async def keep(
        self, tenant_id: str, created_by: str | None, said: FileDescription, received: Received
    ) -> StoredFile:
        """Inspects the bytes and stores them. The returned row is not in the database: add it, or `withdraw`.

        Raises:
            inspection's InspectionRefused: not a valid adapter file; nothing is stored.
            StorageUnavailable, SandboxUnavailable
        """
        try:
            if not received.size:
                raise InvalidFile("file", "the file is empty")
            if said.kind is not None:
                await self._inspector.check_file(received.path, said.kind, owner=tenant_id)
        except BaseException:
            await self.discard(received)
            raise
        made = now()
        row = StoredFile(
            id=new_id("file"),
            tenant_id=tenant_id,
            purpose=said.purpose,
            filename=said.filename,
            size=received.size,
            sha256=received.sha256,
            created_by=created_by,
            created_at=made,
            expires_at=said.expires_at(made),
        )
        row.object_key = f"tenants/{tenant_id}/files/{row.id}"
        await self.store.put_file(row.object_key, received.path, sha256=received.sha256)
        return row

    async def withdraw(self, key: str) -> None:
        """Removes an object that no row names (any more); if that fails, the clean-up does it."""
        try:
            await asyncio.shield(self.store.delete(key))
        except StorageUnavailable as error:
            log.warning("object is left to the clean-up", key=key, error=str(error))
