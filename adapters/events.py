"""Records the events of adapters in the transaction that causes them; reads them in pages or as they
happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Select, func
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.models import PENDING, AdapterEvent, AdapterVersion
from db.base import new_id
from db.cursors import require_cursor
from db.repository import TenantRepository
from db.session import Database

Level = Literal["info", "warning", "error"]

POLL_INTERVAL = 0.25
MAX_PAGE = 100
SETTLED_AFTER = timedelta(seconds=2)
"""Ids are generated before the commit, so for a moment an event may appear before earlier ids do."""


def record(
    session: AsyncSession,
    tenant_id: str,
    adapter_id: str,
    event_type: str,
    message: str,
    *,
    version: int | None = None,
    job_id: str | None = None,
    level: Level = "info",
    data: dict[str, Any] | None = None,
) -> None:
    """Records an event, if the transaction commits."""
    event = AdapterEvent(
        id=new_id("aev"),
        tenant_id=tenant_id,
        adapter_id=adapter_id,
        version=version,
        job_id=job_id,
        type=event_type,
        level=level,
        message=message,
        data=data or {},
    )
    EventRepository(session, tenant_id).add_own(event)


class EventRepository(TenantRepository):
    async def page(
        self,
        adapter_id: str | None = None,
        *,
        job_id: str | None = None,
        after: str | None = None,
        limit: int,
        newest_first: bool = False,
    ) -> list[AdapterEvent]:
        """Returns events of an adapter or of a job, after the one whose id is `after`."""
        query = self._listed(adapter_id, job_id)
        if after is not None:
            query = query.where(AdapterEvent.id < after if newest_first else AdapterEvent.id > after)
        order = AdapterEvent.id.desc() if newest_first else AdapterEvent.id
        return list((await self.session.execute(query.order_by(order).limit(limit))).scalars())

    async def require(self, after: str, adapter_id: str | None = None, *, job_id: str | None = None) -> None:
        """Raises UnknownCursor unless `after` is an event of the adapter or job."""
        await require_cursor(self.session, self._listed(adapter_id, job_id), AdapterEvent.id, after)

    def _listed(self, adapter_id: str | None, job_id: str | None) -> Select[Any]:
        query = self.select_own(AdapterEvent)
        if adapter_id is not None:
            query = query.where(AdapterEvent.adapter_id == adapter_id)
        if job_id is not None:
            query = query.where(AdapterEvent.job_id == job_id)
        return query

    async def last_of(self, adapter_ids: Collection[str]) -> list[AdapterEvent]:
        """Returns the latest event of each of these adapters."""
        last = (
            self.select_own(AdapterEvent, func.max(AdapterEvent.id))
            .where(AdapterEvent.adapter_id.in_(adapter_ids))
            .group_by(AdapterEvent.adapter_id)
        )
        query = self.select_own(AdapterEvent).where(AdapterEvent.id.in_(last))
        return list((await self.session.execute(query)).scalars())

    async def is_pending(self, adapter_id: str) -> bool:
        """Returns whether a version of the adapter will still change by itself."""
        query = self.select_own(AdapterVersion, AdapterVersion.version).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.state.in_(PENDING)
        )
        return (await self.session.execute(query.limit(1))).first() is not None


class Tail:
    """Reads an adapter's or job's events continuously from the one whose id is `after`. Each is returned
    once, also one that appears after later ids.
    """

    def __init__(
        self,
        tenant_id: str,
        adapter_id: str | None = None,
        *,
        job_id: str | None = None,
        after: str | None = None,
    ) -> None:
        self._tenant_id = tenant_id
        self._adapter_id = adapter_id
        self._job_id = job_id
        self._after = after
        self._seen: set[str] = set()
        """Ids after `after` that were returned already."""
        self.at_end = False
        """Whether the last read reached the end."""

    async def read(self, session: AsyncSession) -> list[AdapterEvent]:
        """Returns new events, at most MAX_PAGE."""
        page = await EventRepository(session, self._tenant_id).page(
            self._adapter_id, job_id=self._job_id, after=self._after, limit=MAX_PAGE
        )
        fresh = [event for event in page if event.id not in self._seen]
        self.at_end = len(page) < MAX_PAGE
        settled = datetime.now(UTC) - SETTLED_AFTER
        for event in page:
            if event.created_at < settled or not self.at_end:
                self._after = event.id
        self._seen = {event.id for event in page if self._after is None or event.id > self._after}
        return fresh


async def follow(
    database: Database, tenant_id: str, adapter_id: str, after: str | None = None
) -> AsyncIterator[list[AdapterEvent]]:
    """Yields an adapter's events as they happen, after the one whose id is `after`; ends when nothing is
    pending.

    Yields an empty list now and then when nothing happened. Holds no connection between two reads.
    """
    tail = Tail(tenant_id, adapter_id, after=after)
    while True:
        async with database.read(tenant_id) as session:
            # Read first: what ends the waiting is committed together with its event.
            pending = await EventRepository(session, tenant_id).is_pending(adapter_id)
            fresh = await tail.read(session)
        if fresh or pending:
            yield fresh
        if tail.at_end:
            if not pending:
                return
            await asyncio.sleep(POLL_INTERVAL)
