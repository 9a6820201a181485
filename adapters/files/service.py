"""Stores tenants' files: creates, lists, reads and deletes them.

No database connection is held while bytes are transferred.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from adapters.files.description import FileDescription, describe
from adapters.files.errors import FileNotFound, InvalidFile
from adapters.files.ingestion import FileIngestion, FileInspector, now
from adapters.files.models import Purpose, StoredFile
from adapters.files.repository import FileRepository
from adapters.files.uploads import UploadService, UploadState
from adapters.storage.errors import ObjectNotFound
from adapters.storage.objects import ObjectStore
from adapters.storage.receiving import Received
from db.session import Database
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.retention.classes import DataClass
from tenants.retention.holds import require_no_hold
from tenants.retention.requests import Removed, record_request

__all__ = ["FilePage", "FileService", "UploadService", "UploadState"]

MAX_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class FilePage:
    files: list[StoredFile]
    has_more: bool


class FileService:
    """Files in one object store."""

    def __init__(self, database: Database, store: ObjectStore, inspector: FileInspector) -> None:
        self._database = database
        self._store = store
        self._ingestion = FileIngestion(store, inspector)

    async def create(
        self,
        tenant_id: str,
        created_by: str | None,
        purpose: str,
        filename: str,
        stream: AsyncIterator[bytes] | bytes,
        expires_after: int | None = None,
        *,
        max_bytes: int,
        by: Actor = SYSTEM,
    ) -> StoredFile:
        """Stores a file. `expires_after`: seconds from now; None keeps it until it is deleted.

        Raises:
            InvalidFile, UnsupportedFile, FileTooLarge, StorageLimitReached
            inspection's InspectionRefused: an adapter file with an invalid format.
            StorageUnavailable, DatabaseUnavailable
        """
        said = describe(purpose, filename, expires_after, filename_field="file")
        received = await self.receive(stream, max_bytes=max_bytes)
        return await self.keep(tenant_id, created_by, said, received, by=by)

    async def receive(self, stream: AsyncIterator[bytes] | bytes, *, max_bytes: int) -> Received:
        """Does the first half of `create`, for bytes that arrive before their description: `keep` or
        `discard` the result. Raises FileTooLarge, StorageUnavailable.
        """
        return await self._ingestion.receive(stream, max_bytes=max_bytes, field="file")

    async def discard(self, received: Received) -> None:
        await self._ingestion.discard(received)

    async def keep(
        self,
        tenant_id: str,
        created_by: str | None,
        said: FileDescription,
        received: Received,
        *,
        by: Actor = SYSTEM,
    ) -> StoredFile:
        """Does the second half of `create`: inspects, stores and records the file."""
        row = await self._ingestion.keep(tenant_id, created_by, said, received)
        try:
            async with self._database.write(tenant_id) as session:
                repository = FileRepository(session, tenant_id)
                await repository.require_room(row.size, row.created_at)
                repository.add_own(row)
                details = {"purpose": row.purpose, "filename": row.filename, "bytes": row.size}
                await AuditLog.record(session, tenant_id, by, "file.created", ("file", row.id), details)
        except BaseException:
            await self._ingestion.withdraw(row.object_key)
            raise
        return row

    async def get(self, tenant_id: str, file_id: str) -> StoredFile:
        """Returns a file. Raises FileNotFound."""
        async with self._database.read(tenant_id) as session:
            row = await FileRepository(session, tenant_id).file(file_id, now())
        if row is None:
            raise FileNotFound(file_id)
        return row

    async def list(
        self,
        tenant_id: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = MAX_PAGE,
        newest_first: bool = True,
    ) -> FilePage:
        """Returns a page of the tenant's files. Raises InvalidFile."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidFile("limit", f"must be from 1 to {MAX_PAGE}")
        if purpose is not None and purpose not in Purpose.__members__.values():
            return FilePage([], False)
        async with self._database.read(tenant_id) as session:
            files = await FileRepository(session, tenant_id).files(
                now(), purpose=purpose, after=after, limit=limit + 1, newest_first=newest_first
            )
        return FilePage(files[:limit], len(files) > limit)

    async def stored_bytes(self, tenant_id: str) -> int:
        """Returns the bytes that count towards the storage limit: open uploads count with their announced
        size.
        """
        async with self._database.read(tenant_id) as session:
            return await FileRepository(session, tenant_id).stored_bytes(now())

    async def delete(self, tenant_id: str, file_id: str, *, by: Actor = SYSTEM) -> None:
        """Deletes a file: the row first, so that no request finds a file whose bytes are gone. Raises
        FileNotFound, OnLegalHold.
        """
        async with self._database.write(tenant_id) as session:
            rows = FileRepository(session, tenant_id)
            row = await rows.file(file_id, now())
            if row is None:
                raise FileNotFound(file_id)
            of_batches = row.purpose in (Purpose.BATCH, Purpose.BATCH_OUTPUT)
            data_class = DataClass.BATCHES if of_batches else DataClass.FILES
            await require_no_hold(session, tenant_id, f"file {file_id}", data_class, file_id)
            key = await rows.delete_file(file_id, now())
            if key is None:
                raise FileNotFound(file_id)
            removed = [Removed("files", 1, data_class, [file_id], [key])]
            await record_request(session, tenant_id, by, ("file", file_id), removed)
            await AuditLog.record(session, tenant_id, by, "file.deleted", ("file", file_id))
        await self._ingestion.withdraw(key)

    async def content(self, tenant_id: str, file_id: str) -> tuple[StoredFile, AsyncIterator[bytes]]:
        """Returns the file and its bytes, verified as they are read. Raises FileNotFound; also while they are
        read, as StorageUnavailable and DigestMismatch.
        """
        row = await self.get(tenant_id, file_id)
        return row, self._read(row)

    @asynccontextmanager
    async def reading(self, file: StoredFile) -> AsyncIterator[None]:
        """Surrounds what reads a file's object. Raises FileNotFound if the file was deleted meanwhile;
        ObjectNotFound if its row exists without its object.
        """
        try:
            yield
        except ObjectNotFound:
            await self.get(file.tenant_id, file.id)
            raise

    async def _read(self, file: StoredFile) -> AsyncIterator[bytes]:
        async with self.reading(file):
            async for piece in self._store.get(file.object_key):
                yield piece
