"""Receives files in parts: in any order, in parallel, repeatedly if the client retries.

An upload is pending, then completed, cancelled or expired. Its parts are separate objects until it is
completed. Neither a database connection nor a lock is held while bytes are transferred: of two requests that
complete an upload at once, one creates the file and both return it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from adapters.files.description import FileDescription, describe
from adapters.files.errors import (
    FileTooLarge,
    InvalidFile,
    TooManyUploads,
    UploadNotFound,
    UploadNotPending,
)
from adapters.files.ingestion import FileIngestion, FileInspector, now
from adapters.files.models import Purpose, StoredFile, Upload, UploadPart, UploadStatus
from adapters.files.repository import FileRepository
from adapters.inspection.errors import InspectionRefused
from adapters.storage.errors import ObjectNotFound
from adapters.storage.objects import ObjectStore, joined
from adapters.storage.receiving import Received
from db.base import new_id
from db.session import Database, WriteSession
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.validation import is_printable

MAX_PART_BYTES = 64 * 1024 * 1024
MAX_PARTS = 10_000
LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class UploadState:
    upload: Upload
    parts: list[UploadPart]
    """In order of arrival; empty when the upload is not pending."""
    file: StoredFile | None
    """The file of a completed upload, until it is deleted."""

    @property
    def status(self) -> str:
        return self.upload.status

    @property
    def file_id(self) -> str | None:
        return self.upload.file_id


class Follower(Protocol):
    """Is notified when an upload ends."""

    async def completed(self, tenant_id: str, upload_id: str) -> None:
        """Called after the commit that completed the upload, possibly again. Must handle outages itself."""
        ...

    async def ended(self, session: WriteSession, upload: Upload, refused: InspectionRefused | None) -> None:
        """Called in the transaction that cancels the upload, which is locked; `refused` if inspection
        rejected it.
        """
        ...


class UploadService:
    """Uploads to one object store.

    Args:
        max_pending: pending uploads that a tenant may have at once.
    """

    def __init__(
        self, database: Database, store: ObjectStore, inspector: FileInspector, *, max_pending: int = 100
    ) -> None:
        self._database = database
        self._ingestion = FileIngestion(store, inspector)
        self._max_pending = max_pending
        self._completing: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self.follower: Follower | None = None
        """Notified when uploads end. Set after construction, because it uses this service."""

    async def create(
        self,
        tenant_id: str,
        created_by: str | None,
        purpose: str,
        filename: str,
        mime_type: str,
        size: int,
        expires_after: int | None = None,
        *,
        max_bytes: int,
        by: Actor = SYSTEM,
    ) -> UploadState:
        """Announces a file of `size` bytes. Raises InvalidFile, UnsupportedFile, FileTooLarge,
        TooManyUploads, StorageLimitReached.
        """
        said = describe(purpose, filename, expires_after)
        if size < 1:
            raise InvalidFile("bytes", "must be positive")
        if size > max_bytes:
            raise FileTooLarge("bytes", max_bytes)
        if not 1 <= len(mime_type) <= 255 or not is_printable(mime_type):
            raise InvalidFile("mime_type", "must have from 1 to 255 printable characters")
        made = now()
        row = Upload(
            id=new_id("upload"),
            tenant_id=tenant_id,
            purpose=said.purpose,
            filename=filename,
            mime_type=mime_type,
            size=size,
            status=UploadStatus.PENDING,
            file_expires_after=expires_after,
            created_by=created_by,
            created_at=made,
            expires_at=made + LIFETIME,
        )
        async with self._database.write(tenant_id) as session:
            repository = FileRepository(session, tenant_id)
            await repository.advisory_lock("uploads")
            if await repository.num_pending_uploads(made) >= self._max_pending:
                raise TooManyUploads(self._max_pending)
            await repository.require_room(size, made)
            repository.add_own(row)
            details = {"purpose": row.purpose, "filename": filename, "bytes": size}
            await AuditLog.record(session, tenant_id, by, "upload.created", ("upload", row.id), details)
        return UploadState(row, [], None)

    async def get(self, tenant_id: str, upload_id: str) -> UploadState:
        """Returns an upload. Raises UploadNotFound."""
        async with self._database.read(tenant_id) as session:
            return await self._state(FileRepository(session, tenant_id), upload_id)

    async def expect_part(self, tenant_id: str, upload_id: str) -> None:
        """Checks that a part would be accepted, before its bytes are received. Raises UploadNotFound,
        UploadNotPending, FileTooLarge.
        """
        async with self._database.read(tenant_id) as session:
            await self._room_for(FileRepository(session, tenant_id), upload_id, 0)

    async def add_part(
        self, tenant_id: str, upload_id: str, stream: AsyncIterator[bytes] | bytes
    ) -> UploadPart:
        """Stores a part. Raises UploadNotFound, UploadNotPending, InvalidFile, FileTooLarge,
        StorageUnavailable.
        """
        await self.expect_part(tenant_id, upload_id)
        return await self.keep_part(tenant_id, upload_id, await self.receive(stream))

    async def receive(self, stream: AsyncIterator[bytes] | bytes) -> Received:
        """Does the first half of `add_part`: `keep_part` or `discard` the result."""
        return await self._ingestion.receive(stream, max_bytes=MAX_PART_BYTES, field="data", md5=True)

    async def discard(self, received: Received) -> None:
        await self._ingestion.discard(received)

    async def keep_part(self, tenant_id: str, upload_id: str, received: Received) -> UploadPart:
        """Does the second half of `add_part`: stores and records the part."""
        if not received.size:
            await self._ingestion.discard(received)
            raise InvalidFile("data", "the part is empty")
        part = UploadPart(
            id=new_id("part"),
            tenant_id=tenant_id,
            upload_id=upload_id,
            size=received.size,
            md5=received.md5,
            sha256=received.sha256,
            created_at=now(),
        )
        part.object_key = f"tenants/{tenant_id}/uploads/{upload_id}/{part.id}"
        await self._ingestion.store.put_file(part.object_key, received.path, sha256=received.sha256)
        try:
            async with self._database.write(tenant_id) as session:
                repository = FileRepository(session, tenant_id)
                await self._room_for(repository, upload_id, part.size, lock=True)
                repository.add_own(part)
        except BaseException:
            await self._ingestion.withdraw(part.object_key)
            raise
        return part

    async def complete(
        self,
        tenant_id: str,
        upload_id: str,
        part_ids: Sequence[str],
        md5: str | None = None,
        *,
        by: Actor = SYSTEM,
    ) -> UploadState:
        """Joins the parts in this order to the file. Completing again returns the same file.

        Raises:
            UploadNotFound, UploadNotPending
            InvalidFile: the parts are not the upload's, do not add up, or have another MD5. It stays pending.
            inspection's InspectionRefused: not a valid adapter file. The upload is cancelled.
            StorageUnavailable, DatabaseUnavailable
        """
        state = await self._complete(tenant_id, upload_id, part_ids, md5, by)
        if self.follower is not None:
            await self.follower.completed(tenant_id, upload_id)
        return state

    async def _complete(
        self, tenant_id: str, upload_id: str, part_ids: Sequence[str], md5: str | None, by: Actor
    ) -> UploadState:
        async with self._one_at_a_time(upload_id):
            state = await self._pending_or_completed(tenant_id, upload_id)
            if state.upload.status == UploadStatus.COMPLETED:
                return state
            parts = _chosen(state, part_ids)
            said = FileDescription(
                Purpose(state.upload.purpose), state.upload.filename, state.upload.file_expires_after
            )
            keys = [part.object_key for part in parts]
            try:
                received = await self._ingestion.receive(
                    joined(self._ingestion.store, keys),
                    max_bytes=state.upload.size,
                    field="part_ids",
                    md5=md5 is not None,
                )
            except ObjectNotFound:
                # Another process may have ended the upload meanwhile: then its parts are gone.
                state = await self._pending_or_completed(tenant_id, upload_id)
                if state.upload.status == UploadStatus.COMPLETED:
                    return state
                raise
            if md5 is not None and received.md5 != md5.lower():
                await self._ingestion.discard(received)
                raise InvalidFile("md5", f"the parts' MD5 in this order is {received.md5}")
            try:
                file = await self._ingestion.keep(tenant_id, state.upload.created_by, said, received)
            except InspectionRefused as refused:
                await self._cancel(tenant_id, upload_id, by, refused)
                raise
            return await self._completed(tenant_id, upload_id, file, by)

    async def _pending_or_completed(self, tenant_id: str, upload_id: str) -> UploadState:
        """Returns an upload. Raises UploadNotFound, UploadNotPending: it was cancelled or has expired."""
        state = await self.get(tenant_id, upload_id)
        if state.upload.status not in (UploadStatus.PENDING, UploadStatus.COMPLETED):
            raise UploadNotPending(upload_id, state.upload.status)
        return state

    async def cancel(self, tenant_id: str, upload_id: str, *, by: Actor = SYSTEM) -> UploadState:
        """Cancels an upload and drops its parts. Cancelling again changes nothing. Raises UploadNotFound,
        UploadNotPending.
        """
        return await self._cancel(tenant_id, upload_id, by)

    async def _cancel(
        self, tenant_id: str, upload_id: str, by: Actor, refused: InspectionRefused | None = None
    ) -> UploadState:
        async with self._database.write(tenant_id) as session:
            repository = FileRepository(session, tenant_id)
            upload = await repository.upload(upload_id, lock=True)
            if upload is None:
                raise UploadNotFound(upload_id)
            status = status_of(upload)
            if status not in (UploadStatus.PENDING, UploadStatus.CANCELLED):
                raise UploadNotPending(upload_id, status)
            upload.status = UploadStatus.CANCELLED
            if self.follower is not None:
                await self.follower.ended(session, upload, refused)
            if status != UploadStatus.CANCELLED:
                details = {} if refused is None else {"reason": str(refused)}
                await AuditLog.record(
                    session, tenant_id, by, "upload.cancelled", ("upload", upload_id), details
                )
        await self._drop_parts(tenant_id, upload_id)
        return UploadState(upload, [], None)

    async def _completed(self, tenant_id: str, upload_id: str, file: StoredFile, by: Actor) -> UploadState:
        """Records that the upload became `file`, unless another request was first."""
        try:
            async with self._database.write(tenant_id) as session:
                repository = FileRepository(session, tenant_id)
                upload = await repository.upload(upload_id, lock=True)
                if upload is None or status_of(upload) != UploadStatus.PENDING:
                    raise UploadNotPending(upload_id, upload.status if upload else UploadStatus.CANCELLED)
                upload.status, upload.file_id = UploadStatus.COMPLETED, file.id
                repository.add_own(file)
                details = {"file_id": file.id}
                await AuditLog.record(
                    session, tenant_id, by, "upload.completed", ("upload", upload_id), details
                )
        except UploadNotPending as error:
            await self._ingestion.withdraw(file.object_key)
            if error.status == UploadStatus.COMPLETED:
                return await self.get(tenant_id, upload_id)
            raise
        except BaseException:
            await self._ingestion.withdraw(file.object_key)
            raise
        await self._drop_parts(tenant_id, upload_id)
        return UploadState(upload, [], file)

    async def _drop_parts(self, tenant_id: str, upload_id: str) -> None:
        """Deletes objects before rows: the clean-up finds what is left by its row."""
        async with self._database.read(tenant_id) as session:
            parts = await FileRepository(session, tenant_id).parts(upload_id)
        if not parts:
            return
        for part in parts:
            await self._ingestion.withdraw(part.object_key)
        async with self._database.write(tenant_id) as session:
            await FileRepository(session, tenant_id).forget_parts(upload_id)

    async def _state(self, repository: FileRepository, upload_id: str) -> UploadState:
        upload = await repository.upload(upload_id)
        if upload is None:
            raise UploadNotFound(upload_id)
        repository.session.expunge(upload)
        upload.status = status_of(upload)
        file = await repository.file(upload.file_id, now()) if upload.file_id is not None else None
        pending = upload.status == UploadStatus.PENDING
        return UploadState(upload, await repository.parts(upload_id) if pending else [], file)

    async def _room_for(
        self, repository: FileRepository, upload_id: str, size: int, *, lock: bool = False
    ) -> None:
        """Checks that a part fits: parts may be repeated, so they may exceed the file's size, but not without
        limit.
        """
        upload = await repository.upload(upload_id, lock=lock)
        if upload is None:
            raise UploadNotFound(upload_id)
        if status_of(upload) != UploadStatus.PENDING:
            raise UploadNotPending(upload_id, status_of(upload))
        limit = 2 * upload.size + MAX_PART_BYTES
        if await repository.part_bytes(upload_id) + size > limit:
            raise FileTooLarge("data", limit)

    @asynccontextmanager
    async def _one_at_a_time(self, upload_id: str) -> AsyncIterator[None]:
        """Serialises completions within this process: the second one finds the upload completed and reads
        nothing.
        """
        lock = self._completing.setdefault(upload_id, asyncio.Lock())
        self._waiting[upload_id] += 1
        try:
            async with lock:
                yield
        finally:
            self._waiting[upload_id] -= 1
            if not self._waiting[upload_id]:
                del self._waiting[upload_id], self._completing[upload_id]


def status_of(upload: Upload) -> UploadStatus:
    """Returns the current status: the clean-up records later that an upload has expired."""
    if upload.status == UploadStatus.PENDING and upload.expires_at <= now():
        return UploadStatus.EXPIRED
    return UploadStatus(upload.status)


def _chosen(state: UploadState, part_ids: Sequence[str]) -> list[UploadPart]:
    """Returns the parts with these ids. Raises InvalidFile."""
    if not 1 <= len(part_ids) <= MAX_PARTS:
        raise InvalidFile("part_ids", f"must name from 1 to {MAX_PARTS} parts")
    known = {part.id: part for part in state.parts}
    seen: set[str] = set()
    for part_id in part_ids:
        if part_id not in known:
            raise InvalidFile("part_ids", f"the upload has no part {part_id[:80]!r}")
        if part_id in seen:
            raise InvalidFile("part_ids", f"names {part_id!r} twice")
        seen.add(part_id)
    size = sum(known[part_id].size for part_id in part_ids)
    if size != state.upload.size:
        raise InvalidFile(
            "part_ids", f"the parts have {size} bytes in all, the upload was created for {state.upload.size}"
        )
    return [known[part_id] for part_id in part_ids]
