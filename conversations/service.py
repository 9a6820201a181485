"""Manages conversations and their items, and locks a conversation for a response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from conversations.errors import ConversationLocked, ConversationNotFound, ItemNotFound
from conversations.limits import LOCK_SECONDS
from conversations.models import Conversation
from conversations.owner import Owner
from conversations.repository import ConversationRepository
from conversations.sealing import ContentSealer
from conversations.writing import append_items, opened_item, require_lock
from db.base import new_id
from db.errors import DatabaseUnavailable
from db.session import Database
from tenants.retention.classes import DataClass
from tenants.retention.holds import require_no_hold
from tenants.retention.requests import Removed, record_request

Json = dict[str, Any]
MAX_RENEWALS = 240
"""Of one lock: an hour."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    id: str
    created_at: datetime
    metadata: dict[str, str]


class ConversationService:
    """The conversations of all projects, one per call. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, sealer: ContentSealer) -> None:
        self._database = database
        self._sealer = sealer

    async def create(
        self, owner: Owner, metadata: dict[str, str], items: Sequence[Json] = ()
    ) -> ConversationRecord:
        """Creates a conversation with these first items, each with an `id`."""
        conversation_id, now = new_id("conv"), datetime.now(UTC)
        async with self._database.write(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            conversation = Conversation(
                id=conversation_id,
                tenant_id=owner.tenant_id,
                project_id=owner.project_id,
                created_at=now,
                expires_at=now + owner.keep,
                sealed_metadata=self._sealed(owner, conversation_id, metadata),
            )
            rows.add_own(conversation)
            await session.flush()
            if items:
                await append_items(rows, self._sealer, owner, conversation_id, items)
        return ConversationRecord(conversation_id, now, metadata)

    async def find(self, owner: Owner, conversation_id: str) -> ConversationRecord:
        """Raises ConversationNotFound."""
        async with self._database.read(owner.tenant_id) as session:
            row = await ConversationRepository(session, owner).find(conversation_id)
        if row is None:
            raise ConversationNotFound(conversation_id)
        return self._record(row)

    async def update(
        self, owner: Owner, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationRecord:
        """Replaces the metadata. Raises ConversationNotFound."""
        async with self._database.write(owner.tenant_id) as session:
            row = await ConversationRepository(session, owner).find(conversation_id, lock=True)
            if row is None:
                raise ConversationNotFound(conversation_id)
            row.sealed_metadata = self._sealed(owner, conversation_id, metadata)
        return self._record(row)

    async def delete(self, owner: Owner, conversation_id: str) -> None:
        """Deletes a conversation with its items for good. Raises ConversationNotFound, OnLegalHold."""
        async with self._database.write(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            if await rows.find(conversation_id, lock=True) is None:
                raise ConversationNotFound(conversation_id)
            what = f"conversation {conversation_id}"
            await require_no_hold(session, owner.tenant_id, what, DataClass.RESPONSES, conversation_id)
            num_items = await rows.num_items(conversation_id)
            await rows.delete(conversation_id)
            removed = (
                Removed("conversations", 1, DataClass.RESPONSES, [conversation_id]),
                Removed("conversation_items", num_items, DataClass.RESPONSES),
            )
            target = ("conversation", conversation_id)
            await record_request(session, owner.tenant_id, owner.actor, target, removed)

    async def add_items(self, owner: Owner, conversation_id: str, items: Sequence[Json]) -> None:
        """Adds items, each with an `id`. Raises ConversationNotFound, ConversationLocked, TooMuchContext."""
        async with self._database.write(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            await append_items(rows, self._sealer, owner, conversation_id, items)

    async def items(
        self, owner: Owner, conversation_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Json]:
        """Returns at most `limit` items beyond the item `after`. Raises ConversationNotFound,
        UnknownCursor.
        """
        async with self._database.read(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            if await rows.find(conversation_id) is None:
                raise ConversationNotFound(conversation_id)
            found = await rows.page(conversation_id, after, limit, newest_first)
        return [opened_item(self._sealer, row) for row in found]

    async def context(self, owner: Owner, conversation_id: str) -> list[Json]:
        """Returns all items, the oldest first. Raises ConversationNotFound."""
        async with self._database.read(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            if await rows.find(conversation_id) is None:
                raise ConversationNotFound(conversation_id, "conversation")
            found = await rows.items(conversation_id)
        return [opened_item(self._sealer, row) for row in found]

    async def item(self, owner: Owner, conversation_id: str, item_id: str) -> Json:
        """Raises ConversationNotFound, ItemNotFound."""
        async with self._database.read(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            if await rows.find(conversation_id) is None:
                raise ConversationNotFound(conversation_id)
            row = await rows.item(conversation_id, item_id)
        if row is None:
            raise ItemNotFound(item_id)
        return opened_item(self._sealer, row)

    async def delete_item(self, owner: Owner, conversation_id: str, item_id: str) -> ConversationRecord:
        """Deletes an item for good; returns the conversation. Raises ConversationNotFound, ItemNotFound,
        ConversationLocked, OnLegalHold.
        """
        async with self._database.write(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            conversation = await rows.find(conversation_id, lock=True)
            if conversation is None:
                raise ConversationNotFound(conversation_id)
            require_lock(conversation, None)
            row = await rows.item(conversation_id, item_id)
            if row is None:
                raise ItemNotFound(item_id)
            what = f"conversation {conversation_id}"
            await require_no_hold(session, owner.tenant_id, what, DataClass.RESPONSES, conversation_id)
            conversation.num_items -= 1
            conversation.num_bytes -= len(row.sealed)
            await rows.delete_item(row)
        return self._record(conversation)

    async def lock(
        self, owner: Owner, conversation_id: str, by: str, seconds: float = LOCK_SECONDS
    ) -> ConversationLock:
        """Locks a conversation for the response `by`. Raises ConversationNotFound, ConversationLocked."""
        await self._acquire(owner, conversation_id, by, seconds)
        return ConversationLock(self, owner, conversation_id, by, seconds)

    async def _acquire(self, owner: Owner, conversation_id: str, by: str, seconds: float) -> None:
        async with self._database.write(owner.tenant_id) as session:
            rows = ConversationRepository(session, owner)
            if await rows.find(conversation_id) is None:
                raise ConversationNotFound(conversation_id, "conversation")
            if not await rows.acquire(conversation_id, by, seconds):
                raise ConversationLocked(conversation_id)

    async def _release(self, owner: Owner, conversation_id: str, by: str) -> None:
        async with self._database.write(owner.tenant_id) as session:
            await ConversationRepository(session, owner).release(conversation_id, by)

    def _sealed(self, owner: Owner, conversation_id: str, metadata: dict[str, str]) -> bytes:
        return self._sealer.seal(metadata, owner.tenant_id, f"conversation.metadata {conversation_id}")

    def _record(self, row: Conversation) -> ConversationRecord:
        metadata = self._sealer.open(row.sealed_metadata, row.tenant_id, f"conversation.metadata {row.id}")
        return ConversationRecord(row.id, row.created_at, metadata)


class ConversationLock:
    """A held lock, which `keep` renews. Appending the response's items to the conversation releases it, too.

    A process that dies leaves it locked for `seconds` at most.
    """

    def __init__(
        self, service: ConversationService, owner: Owner, conversation_id: str, by: str, seconds: float
    ) -> None:
        self._service = service
        self._owner = owner
        self._conversation_id = conversation_id
        self._by = by
        self._seconds = seconds
        self._renewing: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Renews the lock in the background until `release`."""
        self._renewing = asyncio.create_task(self._renew(), name="conversation lock")

    def stop(self) -> None:
        """Stops renewing: the lock has been released with the transaction that stored the response."""
        if self._renewing is not None:
            self._renewing.cancel()

    async def release(self) -> None:
        """Releases the lock without any change of the conversation."""
        self.stop()
        try:
            await self._service._release(self._owner, self._conversation_id, self._by)
        except DatabaseUnavailable:
            log.warning("a conversation stays locked until its lock expires", id=self._conversation_id)

    async def _renew(self) -> None:
        # A response takes minutes at most: a lock whose holder was lost within this process ends, too.
        for _ in range(MAX_RENEWALS):
            await asyncio.sleep(self._seconds / 4)
            try:
                await self._service._acquire(self._owner, self._conversation_id, self._by, self._seconds)
            except DatabaseUnavailable:
                continue
            except (ConversationNotFound, ConversationLocked):
                return  # storing the response will fail with the same error
