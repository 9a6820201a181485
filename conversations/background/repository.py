"""Queries background responses: their leases, for the API processes that run them, and their events.

A process's writes start with `BackgroundRows.hold`, which locks the row if the process's lease is still the
latest. Lease times are the database's, so that clocks of processes need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from conversations.models import UNFINISHED, ResponseEvents, StoredResponse
from conversations.owner import Owner
from conversations.repository import later
from db.repository import TenantRepository

_IS_UNFINISHED = StoredResponse.status.in_(UNFINISHED)
_IS_LEASED = StoredResponse.lease_until >= func.clock_timestamp()


class ResponseBacklog(NamedTuple):
    """The background responses of all tenants that have not ended."""

    by_status: dict[str, int]
    oldest_seconds: float
    """Age of the oldest; 0 if there is none."""


class BackgroundRows:
    """Background responses of every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def backlog(self) -> ResponseBacklog:
        """Counts the responses that have not ended, by the index of those."""
        age = func.extract("epoch", func.clock_timestamp() - func.min(StoredResponse.submitted_at))
        query = select(StoredResponse.status, func.count(), age).where(_IS_UNFINISHED)
        rows = (await self._session.execute(query.group_by(StoredResponse.status))).all()
        return ResponseBacklog(
            dict.fromkeys(UNFINISHED, 0) | {row[0]: row[1] for row in rows},
            max((float(row[2]) for row in rows), default=0.0),
        )

    async def claim(self, owner: str, seconds: float, limit: int) -> Sequence[StoredResponse]:
        """Takes up to `limit` responses that no process runs: the oldest of each tenant in turn, where a
        tenant's running ones count first. Of concurrent callers, one gets each.
        """
        turn = func.row_number().over(
            partition_by=StoredResponse.tenant_id,
            order_by=(case((_IS_LEASED, 0), else_=1), StoredResponse.id),
        )
        waiting = select(StoredResponse.id, turn.label("turn")).where(_IS_UNFINISHED).subquery()
        free = (
            select(StoredResponse.id)
            .join(waiting, waiting.c.id == StoredResponse.id)
            .where(_IS_UNFINISHED, or_(StoredResponse.lease_until.is_(None), ~_IS_LEASED))
            .order_by(waiting.c.turn, StoredResponse.id)
            .limit(limit)
            .with_for_update(of=StoredResponse, skip_locked=True)
        )
        claimed = (
            update(StoredResponse)
            .where(StoredResponse.id.in_(free))
            .values(
                fence=StoredResponse.fence + 1,
                lease_owner=owner,
                lease_until=later(seconds),
                status="in_progress",
            )
            .returning(StoredResponse)
        )
        return (await self._session.execute(claimed)).scalars().all()

    async def beat(self, owner: str, seconds: float, ids: Collection[str]) -> dict[str, int]:
        """Extends the leases of these responses; returns the fencing tokens of those still leased."""
        extended = (
            update(StoredResponse)
            .where(StoredResponse.id.in_(ids), StoredResponse.lease_owner == owner, _IS_UNFINISHED)
            .values(lease_until=later(seconds))
            .returning(StoredResponse.id, StoredResponse.fence)
        )
        rows = await self._session.execute(extended, execution_options={"synchronize_session": False})
        return dict(rows.tuples().all())

    async def hold(self, response_id: str, fence: int) -> StoredResponse | None:
        """Returns the response, locked until the transaction ends; None when the lease is not the latest."""
        query = select(StoredResponse).where(
            StoredResponse.id == response_id, StoredResponse.fence == fence, _IS_UNFINISHED
        )
        return (await self._session.execute(query.with_for_update())).scalar_one_or_none()

    async def release(self, owner: str, ids: Collection[str]) -> None:
        """Ends the leases of these responses, so that another process can take them at once."""
        ended = (
            update(StoredResponse)
            .where(StoredResponse.id.in_(ids), StoredResponse.lease_owner == owner, _IS_UNFINISHED)
            .values(lease_owner=None, lease_until=None)
        )
        await self._session.execute(ended, execution_options={"synchronize_session": False})

    async def last_sequence(self, response_id: str) -> int:
        """Returns the number of the last stored event; -1 if there is none."""
        query = select(func.max(ResponseEvents.sequence)).where(ResponseEvents.response_id == response_id)
        found = (await self._session.execute(query)).scalar_one()
        return -1 if found is None else found

    async def delete_attempt(self, response_id: str) -> None:
        """Deletes the events of earlier attempts, but not those from before the first one."""
        written = (ResponseEvents.response_id == response_id, ResponseEvents.fence > 0)
        await self._session.execute(delete(ResponseEvents).where(*written))


class BackgroundRepository(TenantRepository):
    """The background responses of one project."""

    def __init__(self, session: AsyncSession, owner: Owner) -> None:
        super().__init__(session, owner.tenant_id)
        self._owner = owner

    async def num_unfinished(self) -> int:
        """Counts the project's unfinished responses. Call `advisory_lock` first to add one."""
        query = self.select_own(StoredResponse, func.count()).where(
            StoredResponse.project_id == self._owner.project_id, _IS_UNFINISHED
        )
        return (await self.session.execute(query)).scalar_one()

    async def events(self, response_id: str, after: int) -> Sequence[Any]:
        """Returns rows (sequence, sealed) with events beyond the sequence number `after`."""
        query = (
            self.select_own(ResponseEvents, ResponseEvents.sequence, ResponseEvents.sealed)
            .where(ResponseEvents.response_id == response_id, ResponseEvents.sequence > after)
            .order_by(ResponseEvents.sequence)
        )
        return (await self.session.execute(query)).all()
