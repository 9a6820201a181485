"""Queries the tables of batches: one tenant's for the API, and all tenants' for the processes that run them.

A running process's writes start with `BatchLeases.hold`, which locks the batch's row if the process's lease
is still the latest. Lease times are the database's, so that the processes' clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from batches.models import OPEN, Batch, BatchLine, BatchStatus
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.repository import is_id


def _later(seconds: float) -> ColumnElement[datetime]:
    """Returns the time so many seconds from now, by the database's clock."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


WINDOW_SECONDS = 86_400.0
"""The completion window of every batch."""


class BatchBacklog(NamedTuple):
    """The batches of all tenants that have not ended."""

    by_status: dict[str, int]
    num_lines: int
    """Lines without a result, of batches that have been checked."""
    oldest_seconds: float
    """Age of the oldest; 0 if there is none."""
    window_left_seconds: float
    """Until the first of them expires; `WINDOW_SECONDS` if there is none."""


class BatchRepository(TenantRepository):
    """One tenant's batches and their lines."""

    async def find(self, batch_id: str, *, lock: bool = False) -> Batch | None:
        """Finds a batch. `lock`: locked until the transaction ends."""
        if not is_id(batch_id):
            return None
        query = self.select_own(Batch).where(Batch.id == batch_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def page(self, *, after: str | None, limit: int, newest_first: bool = True) -> list[Batch]:
        """Returns at most `limit` batches, after the batch `after`."""
        page = await fetch_page(
            self.session,
            self.select_own(Batch),
            Batch.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
        )
        return list(page.scalars())

    async def num_open(self) -> int:
        query = self.select_own(Batch, func.count()).where(Batch.status.in_(OPEN))
        return (await self.session.execute(query)).scalar_one()

    async def enqueued_lines(self) -> int:
        """Returns the number of lines without a result, of all checked batches that have not ended."""
        waiting = func.coalesce(func.sum(Batch.total - Batch.completed - Batch.failed), 0)
        query = self.select_own(Batch, waiting).where(Batch.status.in_(OPEN))
        return int((await self.session.execute(query)).scalar_one())

    async def begun(self, batch_id: str) -> Sequence[Row[int, datetime, bool]]:
        """Returns (line, submitted_at, whether it has a result) of each line that has begun."""
        query = self.select_own(
            BatchLine, BatchLine.line, BatchLine.submitted_at, BatchLine.content.is_not(None)
        ).where(BatchLine.batch_id == batch_id)
        return (await self.session.execute(query)).all()

    async def begin(self, batch_id: str, lines: Collection[int], at: datetime) -> dict[int, datetime]:
        """Records that lines begin; returns when each did. One that has begun before keeps its time."""
        rows = [
            {"batch_id": batch_id, "line": line, "tenant_id": self.tenant_id, "submitted_at": at}
            for line in lines
        ]
        statement = insert(BatchLine).values(rows)
        statement = statement.on_conflict_do_update(
            constraint="pk_batch_lines", set_={"submitted_at": BatchLine.submitted_at}
        )
        begun = await self.session.execute(statement.returning(BatchLine.line, BatchLine.submitted_at))
        return {row.line: row.submitted_at for row in begun}

    async def store(self, batch_id: str, results: Sequence[Mapping[str, Any]]) -> set[int]:
        """Stores results of lines, by column; returns the lines that had none before."""
        rows = [{"batch_id": batch_id, "tenant_id": self.tenant_id, **result} for result in results]
        statement = insert(BatchLine).values(rows)
        changed = {name: statement.excluded[name] for name in ("content", "is_failed")}
        statement = statement.on_conflict_do_update(
            constraint="pk_batch_lines", set_=changed, where=BatchLine.content.is_(None)
        )
        return set((await self.session.execute(statement.returning(BatchLine.line))).scalars())

    async def results(
        self, batch_id: str, *, failed: bool, after: int, limit: int
    ) -> Sequence[Row[int, str | None]]:
        """Returns (line, content) of lines that failed or did not, in order, after the line `after`."""
        query = self.select_own(BatchLine, BatchLine.line, BatchLine.content).where(
            BatchLine.batch_id == batch_id, BatchLine.is_failed == failed, BatchLine.line > after
        )
        return (await self.session.execute(query.order_by(BatchLine.line).limit(limit))).all()

    async def delete_lines(self, batch_id: str) -> None:
        await self.session.execute(self.delete_own(BatchLine).where(BatchLine.batch_id == batch_id))


class BatchLeases:
    """Batches of any tenant, as the processes that run them see them."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def backlog(self) -> BatchBacklog:
        """Counts the batches that have not ended, by the index of those."""
        query = (
            select(
                Batch.status,
                func.count(),
                func.sum(Batch.total - Batch.completed - Batch.failed),
                func.extract("epoch", func.clock_timestamp() - func.min(Batch.created_at)),
                func.extract("epoch", func.min(Batch.expires_at) - func.clock_timestamp()),
            )
            .where(Batch.status.in_(OPEN))
            .group_by(Batch.status)
        )
        rows = (await self._session.execute(query)).all()
        return BatchBacklog(
            {status.value: 0 for status in OPEN} | {str(row[0]): row[1] for row in rows},
            sum(int(row[2]) for row in rows),
            max((float(row[3]) for row in rows), default=0.0),
            min((float(row[4]) for row in rows), default=WINDOW_SECONDS),
        )

    async def claim(
        self, owner: str, endpoints: Collection[str], seconds: float, most_per_tenant: int
    ) -> Batch | None:
        """Takes the batch that is to run next, of the tenant with the fewest running, the oldest first.
        Tenants with `most_per_tenant` running are left out. Of concurrent callers, each gets another one.
        """
        other = aliased(Batch)
        now = func.clock_timestamp()
        running = (
            select(func.count())
            .where(other.tenant_id == Batch.tenant_id, other.status.in_(OPEN), other.lease_until >= now)
            .correlate(Batch)
            .scalar_subquery()
        )
        free = or_(Batch.lease_until.is_(None), Batch.lease_until < now)
        chosen = (
            select(Batch.id)
            .where(Batch.status.in_(OPEN), Batch.endpoint.in_(endpoints), free, running < most_per_tenant)
            .order_by(running, Batch.created_at, Batch.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        claimed = (
            update(Batch)
            .where(Batch.id.in_(chosen.scalar_subquery()))
            .values(fence=Batch.fence + 1, lease_owner=owner, lease_until=_later(seconds))
            .returning(Batch)
        )
        return (await self._session.execute(claimed)).scalar_one_or_none()

    async def hold(self, batch_id: str, fence: int) -> Batch | None:
        """Returns the batch, locked until the transaction ends; None when the lease is not the latest."""
        query = select(Batch).where(Batch.id == batch_id, Batch.fence == fence, Batch.status.in_(OPEN))
        return (await self._session.execute(query.with_for_update())).scalar_one_or_none()

    async def renew(self, batch_id: str, fence: int, seconds: float) -> BatchStatus | None:
        """Extends the lease; returns the batch's status. None when the lease is lost."""
        renewed = (
            update(Batch)
            .where(Batch.id == batch_id, Batch.fence == fence, Batch.status.in_(OPEN))
            .values(lease_until=_later(seconds))
            .returning(Batch.status)
        )
        status = (await self._session.execute(renewed)).scalar_one_or_none()
        return None if status is None else BatchStatus(status)

    async def release(self, batch_id: str, fence: int) -> None:
        """Ends the lease, so that another process can take the batch at once."""
        ours = (Batch.id == batch_id, Batch.fence == fence)
        await self._session.execute(update(Batch).where(*ours).values(lease_owner=None, lease_until=None))

    async def ended_inputs(self, limit: int) -> Sequence[Row[str, str | None]]:
        """Returns (batch id, key) of copies of inputs that no batch needs any more."""
        query = select(Batch.id, Batch.input_key).where(
            Batch.input_key.is_not(None), Batch.status.not_in(OPEN)
        )
        return (await self._session.execute(query.limit(limit))).all()

    async def forget_inputs(self, batch_ids: Sequence[str]) -> None:
        await self._session.execute(update(Batch).where(Batch.id.in_(batch_ids)).values(input_key=None))

    async def counts(self) -> dict[str, int]:
        """Returns the number of unfinished batches by status."""
        query = select(Batch.status, func.count()).where(Batch.status.in_(OPEN)).group_by(Batch.status)
        return {status: int(count) for status, count in (await self._session.execute(query)).tuples()}
