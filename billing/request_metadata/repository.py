"""Queries the metadata of requests: writes that of all tenants, reads that of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.request_metadata.models import StoredMetadata
from db.repository import TenantRepository


class MetadataWriter:
    """Writes every tenant's metadata of requests."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds the rows of requests that have none yet."""
        if rows:
            await self._session.execute(insert(StoredMetadata).on_conflict_do_nothing(), rows)


class MetadataRepository(TenantRepository):
    """Queries one tenant's metadata of requests."""

    async def sealed(self, submitted_at: datetime, request_id: str) -> bytes | None:
        row = StoredMetadata
        query = self.select_own(row, row.sealed).where(
            row.submitted_at == submitted_at, row.request_id == request_id
        )
        return (await self.session.execute(query)).scalar_one_or_none()
