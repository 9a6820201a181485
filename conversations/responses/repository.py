"""Queries the stored responses of one project, and chains of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from conversations.limits import MAX_TURNS
from conversations.models import ResponseEvents, StoredResponse
from conversations.owner import Owner
from conversations.repository import storable_id
from db.repository import TenantRepository


class Turn(NamedTuple):
    """One response of a chain, without its content."""

    id: str
    previous_id: str | None
    conversation_id: str | None
    status: str
    num_items: int
    num_bytes: int
    depth: int
    """1 for the latest."""


class ResponseRepository(TenantRepository):
    def __init__(self, session: AsyncSession, owner: Owner) -> None:
        super().__init__(session, owner.tenant_id)
        self._owner = owner

    async def find(self, response_id: str, *, lock: bool = False) -> StoredResponse | None:
        """Finds a response that has not expired. `lock`: until the transaction ends."""
        if not storable_id(response_id):
            return None
        query = self.select_own(StoredResponse).where(
            *self._visible(StoredResponse), StoredResponse.id == response_id
        )
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def delete(self, response_id: str) -> StoredResponse | None:
        """Deletes a response with its events; returns it, or None if there was none."""
        found = await self.find(response_id, lock=True)
        if found is not None:
            await self.session.delete(found)
        return found

    async def num_events(self, response_id: str) -> int:
        """Returns how many rows of events a response has."""
        query = self.select_own(ResponseEvents, func.count())
        query = query.where(ResponseEvents.response_id == response_id)
        return int((await self.session.execute(query)).scalar_one())

    async def chain(self, response_id: str) -> list[Turn]:
        """Returns the response and those that it continues, the latest first; at most one more than
        MAX_TURNS.
        """
        if not storable_id(response_id):
            return []
        latest = (
            select(*_columns(StoredResponse, literal(1)))
            .where(
                StoredResponse.tenant_id == self.tenant_id,
                *self._visible(StoredResponse),
                StoredResponse.id == response_id,
            )
            .cte("chain", recursive=True)
        )
        older = aliased(StoredResponse)
        chain = latest.union_all(
            select(*_columns(older, latest.c.depth + 1))
            .join(latest, older.id == latest.c.previous_id)
            .where(older.tenant_id == self.tenant_id, *self._visible(older), latest.c.depth <= MAX_TURNS)
        )
        rows = await self.session.execute(select(chain).order_by(chain.c.depth))
        return [Turn(*row) for row in rows]

    async def several(self, response_ids: Collection[str]) -> Sequence[StoredResponse]:
        query = self.select_own(StoredResponse).where(
            *self._visible(StoredResponse), StoredResponse.id.in_(response_ids)
        )
        return (await self.session.execute(query)).scalars().all()

    async def with_items(self, item_ids: Collection[str]) -> Sequence[StoredResponse]:
        """Returns the responses that have one of these items."""
        wanted = [one for one in item_ids if storable_id(one)]
        query = self.select_own(StoredResponse).where(
            *self._visible(StoredResponse), StoredResponse.item_ids.overlap(wanted)
        )
        return (await self.session.execute(query)).scalars().all()

    def _visible(self, response: Any) -> tuple[ColumnElement[bool], ...]:
        return (response.project_id == self._owner.project_id, response.expires_at > func.now())


def _columns(response: Any, depth: Any) -> list[Any]:
    num_bytes = func.octet_length(response.sealed_input) + func.octet_length(response.sealed_output)
    return [
        response.id,
        response.previous_id,
        response.conversation_id,
        response.status,
        response.num_items,
        num_bytes.label("num_bytes"),
        depth.label("depth"),
    ]
