"""Tenants' files: create, list, read, delete.

Owns the transactions. No connection to the database is held while bytes move.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from adapters.files.description import FileDescription, describe
from adapters.files.errors import FileNotFound, InvalidFile
from adapters.files.intake import FileInspector, Intake, now
from adapters.files.models import Purpose, StoredFile
from adapters.files.repository import FileRepository
from adapters.files.uploads import UploadService, UploadState
from adapters.storage.objects import ObjectStore
from adapters.storage.receiving import Received
from db.session import Database
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog

__all__ = ["FilePage", "FileService", "UploadService", "UploadState"]

MAX_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class FilePage:
    files: list[StoredFile]
    has_more: bool


class FileService:
    """Files on one object store."""

    def __init__(self, database: Database, store: ObjectStore, inspector: FileInspector) -> None:
        self._database = database
        self._store = store
        self._intake = Intake(store, inspector)

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
        """Store a file. `expires_after`: seconds from now; None keeps it until it is deleted.

        Raises:
            InvalidFile, UnsupportedFile, FileTooLarge, StorageLimitReached
            inspection's InspectionRefused: an adapter's file of the wrong form.
            StorageUnavailable, DatabaseUnavailable
        """
        said = describe(purpose, filename, expires_after, filename_field="file")
        received = await self.receive(stream, max_bytes=max_bytes)
        return await self.keep(tenant_id, created_by, said, received, by=by)

    async def receive(self, stream: AsyncIterator[bytes] | bytes, *, max_bytes: int) -> Received:
        """The first half of `create`, for bytes that come before what is said of them: `keep` or `discard`
        them. Raises FileTooLarge, StorageUnavailable.
        """
        return await self._intake.receive(stream, max_bytes=max_bytes, field="file")

    async def discard(self, received: Received) -> None:
        await self._intake.discard(received)

    async def keep(
        self,
        tenant_id: str,
        created_by: str | None,
        said: FileDescription,
        received: Received,
        *,
        by: Actor = SYSTEM,
    ) -> StoredFile:
        """The second half."""
        row = await self._intake.keep(tenant_id, created_by, said, received)
        try:
            async with self._database.write(tenant_id) as session:
                repository = FileRepository(session, tenant_id)
                await repository.require_room(row.size, row.created_at)
                repository.add_own(row)
                told = {"purpose": row.purpose, "filename": row.filename, "bytes": row.size}
                await AuditLog.record(session, tenant_id, by, "file.created", ("file", row.id), told)
        except BaseException:
            await self._intake.withdraw(row.object_key)
            raise
        return row

    async def get(self, tenant_id: str, file_id: str) -> StoredFile:
        """Raises FileNotFound."""
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
        """A page of the tenant's files. Raises InvalidFile."""
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
        """As the limit of storage counts them: open uploads with what they were announced with."""
        async with self._database.read(tenant_id) as session:
            return await FileRepository(session, tenant_id).stored_bytes(now())

    async def delete(self, tenant_id: str, file_id: str, *, by: Actor = SYSTEM) -> None:
        """The row first: nobody finds a file whose bytes are going. Raises FileNotFound."""
        async with self._database.write(tenant_id) as session:
            key = await FileRepository(session, tenant_id).delete_file(file_id, now())
            if key is None:
                raise FileNotFound(file_id)
            await AuditLog.record(session, tenant_id, by, "file.deleted", ("file", file_id))
        await self._intake.withdraw(key)

    async def content(self, tenant_id: str, file_id: str) -> tuple[StoredFile, AsyncIterator[bytes]]:
        """The file and its bytes, verified as they are read. Raises FileNotFound; StorageUnavailable and
        DigestMismatch while they are.
        """
        row = await self.get(tenant_id, file_id)
        return row, self._store.get(row.object_key)
