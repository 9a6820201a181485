"""Queries the tables of files and uploads: one tenant's through `FileRepository`, all tenants' through
`FileInventory`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Row, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.elements import ColumnElement

from adapters.files.errors import StorageLimitReached
from adapters.files.models import StoredFile, Upload, UploadPart, UploadStatus
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.limits.kinds import Metric
from tenants.limits.repository import LimitRepository

_ID = re.compile(r"[a-z]{1,10}_[0-9a-z]{1,40}")


def _is_id(given: str) -> bool:
    """Returns whether `given` has the form of an id: anything else may not even be storable."""
    return _ID.fullmatch(given) is not None


def _alive(now: datetime) -> ColumnElement[bool]:
    return or_(StoredFile.expires_at.is_(None), StoredFile.expires_at > now)


class FileRepository(TenantRepository):
    async def file(self, file_id: str, now: datetime) -> StoredFile | None:
        if not _is_id(file_id):
            return None
        query = self.select_own(StoredFile).where(StoredFile.id == file_id, _alive(now))
        return (await self.session.execute(query)).scalar_one_or_none()

    async def files(
        self, now: datetime, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """Returns at most `limit` files after the file `after`. Ids sort by creation time."""
        listed = self.select_own(StoredFile)
        filters = [_alive(now)] if purpose is None else [_alive(now), StoredFile.purpose == purpose]
        page = await fetch_page(
            self.session,
            listed,
            StoredFile.id,
            *filters,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "file.deleted"),
        )
        return list(page.scalars())

    async def delete_file(self, file_id: str, now: datetime) -> str | None:
        """Deletes the row; returns the key of its object, or None when there is no such file."""
        if not _is_id(file_id):
            return None
        query = self.delete_own(StoredFile).where(StoredFile.id == file_id, _alive(now))
        return (await self.session.execute(query.returning(StoredFile.object_key))).scalar_one_or_none()

    async def num_pending_uploads(self, now: datetime) -> int:
        query = self.select_own(Upload, func.count()).where(
            Upload.status == UploadStatus.PENDING, Upload.expires_at > now
        )
        return (await self.session.execute(query)).scalar_one()

    async def require_room(self, size: int, now: datetime) -> None:
        """Checks that `size` more bytes fit into the tenant's storage limit, and blocks other additions until
        this transaction ends. An open upload counts with its announced size. Raises StorageLimitReached.
        """
        limit = await LimitRepository(self.session, self.tenant_id).stored(Metric.STORAGE_BYTES)
        if limit is None:
            return
        await self.advisory_lock("storage")
        if await self.stored_bytes(now) + size > limit:
            raise StorageLimitReached(limit)

    async def stored_bytes(self, now: datetime) -> int:
        files = self.select_own(StoredFile, func.coalesce(func.sum(StoredFile.size), 0)).where(_alive(now))
        uploads = self.select_own(Upload, func.coalesce(func.sum(Upload.size), 0)).where(
            Upload.status == UploadStatus.PENDING, Upload.expires_at > now
        )
        in_files = (await self.session.execute(files)).scalar_one()
        return int(in_files) + int((await self.session.execute(uploads)).scalar_one())

    async def upload(self, upload_id: str, *, lock: bool = False) -> Upload | None:
        if not _is_id(upload_id):
            return None
        query = self.select_own(Upload).where(Upload.id == upload_id)
        if lock:
            query = query.with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def parts(self, upload_id: str) -> list[UploadPart]:
        """Returns an upload's parts in order of arrival."""
        query = self.select_own(UploadPart).where(UploadPart.upload_id == upload_id)
        return list((await self.session.execute(query.order_by(UploadPart.id))).scalars())

    async def part_bytes(self, upload_id: str) -> int:
        query = self.select_own(UploadPart, func.coalesce(func.sum(UploadPart.size), 0))
        return int((await self.session.execute(query.where(UploadPart.upload_id == upload_id))).scalar_one())

    async def forget_parts(self, upload_id: str) -> None:
        await self.session.execute(self.delete_own(UploadPart).where(UploadPart.upload_id == upload_id))


class FileInventory:
    """Files, uploads and parts of all tenants, for the clean-up."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def expire_uploads(self, now: datetime) -> int:
        """Marks pending uploads that have expired; returns how many."""
        query = (
            update(Upload)
            .where(Upload.status == UploadStatus.PENDING, Upload.expires_at <= now)
            .values(status=UploadStatus.EXPIRED)
            .returning(Upload.id)
        )
        return len((await self.session.execute(query)).all())

    async def dead_parts(self, limit: int) -> list[UploadPart]:
        """Returns parts of uploads that have ended."""
        query = select(UploadPart).join(Upload, Upload.id == UploadPart.upload_id)
        query = query.where(Upload.status != UploadStatus.PENDING).limit(limit)
        return list((await self.session.execute(query)).scalars())

    async def delete_parts(self, part_ids: Collection[str]) -> None:
        await self.session.execute(delete(UploadPart).where(UploadPart.id.in_(part_ids)))

    async def without_file(self, keys: Sequence[str]) -> set[str]:
        """Returns those of `keys` that are no file's and no part's object."""
        known: set[str] = set()
        for column in (StoredFile.object_key, UploadPart.object_key):
            rows: Sequence[Row[str]] = (
                await self.session.execute(select(column).where(column.in_(keys)))
            ).all()
            known |= {row[0] for row in rows}
        return set(keys) - known
