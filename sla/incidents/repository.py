"""Queries incidents, and the counts of all tenants together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from sla.granularity import Row, add_shares, select_shares, share_bounds
from sla.incidents.models import Incident, IncidentNote


class IncidentRepository:
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def add(self, row: Incident | IncidentNote) -> None:
        self.session.add(row)

    async def find(self, incident_id: str, *, lock: bool = False) -> Incident | None:
        query = select(Incident).where(Incident.id == incident_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def page(self, *, after: str | None, limit: int) -> Sequence[Incident]:
        """Returns incidents older than the id `after`, the newest first."""
        query = select(Incident).order_by(Incident.id.desc()).limit(limit)
        if after is not None:
            query = query.where(Incident.id < after)
        return (await self.session.execute(query)).scalars().all()

    async def open(self, *, public_alone: bool = False) -> Sequence[Incident]:
        """Returns open incidents, the oldest first."""
        query = select(Incident).where(Incident.ended_at.is_(None)).order_by(Incident.began_at)
        if public_alone:
            query = query.where(Incident.is_public)
        return (await self.session.execute(query)).scalars().all()

    async def notes(self, incident_ids: Sequence[str]) -> Sequence[IncidentNote]:
        """Returns the incidents' notes, the oldest first."""
        query = select(IncidentNote).where(IncidentNote.incident_id.in_(incident_ids))
        return (await self.session.execute(query.order_by(IncidentNote.id))).scalars().all()


def _of_everybody(row: Row, *columns: Any) -> Select[Any]:
    return select(*columns).select_from(row)


class ServedToAll:
    """Queries the counts of all tenants together. The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def shares(self, since: Sequence[datetime], until: datetime) -> list[dict[str, tuple[int, int]]]:
        """Returns (requests, failed) by service tier from each start up to `until`."""
        if not since:
            return []
        statement = select_shares(_of_everybody, len(since))
        return add_shares(await self.session.execute(statement, share_bounds(since, until)), len(since))
