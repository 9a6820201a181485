"""Queries conversations and their items, those of one project."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, update
from sqlalchemy.ext.asyncio import AsyncSession

from conversations.models import Conversation, ConversationItem
from conversations.owner import Owner
from db.errors import UnknownCursor
from db.repository import TenantRepository

MAX_ID = 128
"""Characters of an id; longer ones are not looked up."""


def later(seconds: float) -> ColumnElement[datetime]:
    """Returns the time so many seconds from now, by the database's clock."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


def storable_id(given: str) -> bool:
    """Returns whether a client's text can be an id at all."""
    return len(given) <= MAX_ID and given.isascii() and given.isprintable()


class ConversationRepository(TenantRepository):
    """The conversations of one project."""

    def __init__(self, session: AsyncSession, owner: Owner) -> None:
        super().__init__(session, owner.tenant_id)
        self._owner = owner

    async def find(self, conversation_id: str, *, lock: bool = False) -> Conversation | None:
        """Finds a conversation that has not expired. `lock`: until the transaction ends."""
        if not storable_id(conversation_id):
            return None
        query = self.select_own(Conversation).where(*self._visible, Conversation.id == conversation_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def acquire(self, conversation_id: str, by: str, seconds: float) -> bool:
        """Locks a conversation for the response `by`, or extends its lock; returns whether it did."""
        free = or_(
            Conversation.locked_by.is_(None),
            Conversation.locked_by == by,
            Conversation.locked_until < func.clock_timestamp(),
        )
        locked = (
            self.update_own(Conversation)
            .where(*self._visible, Conversation.id == conversation_id, free)
            .values(locked_by=by, locked_until=later(seconds))
            .returning(Conversation.id)
        )
        return (await self.session.execute(locked)).first() is not None

    async def release(self, conversation_id: str, by: str) -> None:
        """Unlocks a conversation that the response `by` has locked."""
        await self.session.execute(
            self.update_own(Conversation)
            .where(Conversation.id == conversation_id, Conversation.locked_by == by)
            .values(locked_by=None, locked_until=None)
        )

    async def delete(self, conversation_id: str) -> bool:
        """Deletes a conversation with its items; returns whether there was one."""
        if not storable_id(conversation_id):
            return False
        gone = self.delete_own(Conversation).where(*self._visible, Conversation.id == conversation_id)
        return (await self.session.execute(gone.returning(Conversation.id))).first() is not None

    async def num_items(self, conversation_id: str) -> int:
        """Returns how many items a conversation has."""
        item = ConversationItem
        query = self.select_own(item, func.count()).where(item.conversation_id == conversation_id)
        return int((await self.session.execute(query)).scalar_one())

    async def items(self, conversation_id: str) -> Sequence[ConversationItem]:
        """Returns all items, in their order."""
        item = ConversationItem
        query = self.select_own(item).where(item.conversation_id == conversation_id)
        return (await self.session.execute(query.order_by(item.position))).scalars().all()

    async def page(
        self, conversation_id: str, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[ConversationItem]:
        """Returns at most `limit` items beyond the item `after`. Raises UnknownCursor."""
        item = ConversationItem
        query = self.select_own(item).where(item.conversation_id == conversation_id)
        if after is not None:
            last = await self.item(conversation_id, after)
            if last is None:
                raise UnknownCursor
            query = query.where(
                item.position < last.position if newest_first else item.position > last.position
            )
        order = item.position.desc() if newest_first else item.position
        return (await self.session.execute(query.order_by(order).limit(limit))).scalars().all()

    async def item(self, conversation_id: str, item_id: str) -> ConversationItem | None:
        item = ConversationItem
        if not storable_id(item_id):
            return None
        query = self.select_own(item).where(item.conversation_id == conversation_id, item.id == item_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def items_by_id(self, item_ids: Collection[str]) -> Sequence[ConversationItem]:
        """Returns the items with these ids, of any conversation of the project."""
        item = ConversationItem
        query = (
            self.select_own(item)
            .join(Conversation, Conversation.id == item.conversation_id)
            .where(*self._visible, item.id.in_([one for one in item_ids if storable_id(one)]))
        )
        return (await self.session.execute(query)).scalars().all()

    async def delete_item(self, item: ConversationItem) -> None:
        await self.session.delete(item)

    @property
    def _visible(self) -> tuple[ColumnElement[bool], ...]:
        return (Conversation.project_id == self._owner.project_id, Conversation.expires_at > func.now())


async def unlock_all(session: AsyncSession, by: str) -> None:
    """Unlocks what the response `by` has locked, for a caller that has the response's lease."""
    await session.execute(
        update(Conversation).where(Conversation.locked_by == by).values(locked_by=None, locked_until=None)
    )
