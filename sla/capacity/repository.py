"""Reads and writes capacity samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from sla.capacity.models import CapacitySample


class Measured(NamedTuple):
    """One sample."""

    subject: str
    resource: str
    value: float
    limit: float | None


class CapacityRepository:
    """The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, hour: datetime, samples: Sequence[Measured]) -> None:
        """Adds samples to those of the hour."""
        if not samples:
            return
        statement = insert(CapacitySample).values(
            [
                {
                    "hour": hour,
                    "subject": one.subject,
                    "resource": one.resource,
                    "num_samples": 1,
                    "total": one.value,
                    "peak": one.value,
                    "limit": one.limit,
                }
                for one in samples
            ]
        )
        new = statement.excluded
        await self._session.execute(
            statement.on_conflict_do_update(
                index_elements=["hour", "subject", "resource"],
                set_={
                    "num_samples": CapacitySample.num_samples + 1,
                    "total": CapacitySample.total + new.total,
                    "peak": func.greatest(CapacitySample.peak, new.peak),
                    "limit": new.limit,
                },
            )
        )

    async def since(self, hour: datetime) -> Sequence[CapacitySample]:
        query = select(CapacitySample).where(CapacitySample.hour >= hour).order_by(CapacitySample.hour)
        return (await self._session.execute(query)).scalars().all()

    async def forget(self, before: datetime) -> None:
        await self._session.execute(delete(CapacitySample).where(CapacitySample.hour < before))

    async def database_bytes(self) -> int:
        query = text("SELECT pg_database_size(current_database())")
        return int((await self._session.execute(query)).scalar_one())
