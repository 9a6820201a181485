"""Stores responses, returns and deletes them, and collects the turns that a new response continues."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from conversations.errors import (
    EarlierResponseGone,
    InConversation,
    ItemNotFound,
    ResponseNotFound,
    ResponseUnfinished,
    TooMuchContext,
)
from conversations.limits import MAX_BYTES, MAX_ITEMS, MAX_TURNS
from conversations.models import UNFINISHED, StoredResponse
from conversations.owner import Owner
from conversations.repository import ConversationRepository, unlock_all
from conversations.responses.repository import ResponseRepository, Turn
from conversations.sealing import ContentSealer
from conversations.writing import append_items, opened_item
from db.errors import UnknownCursor
from db.session import Database, WriteSession
from tenants.retention.classes import DataClass
from tenants.retention.holds import require_no_hold
from tenants.retention.requests import Removed, record_request

Json = dict[str, Any]
PREVIOUS = "previous_response_id"


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """A response as it is stored. Items are the API's objects, each with an `id`."""

    id: str
    status: str
    submitted_at: float
    """Unix seconds."""
    body: Json
    """The response object without its output."""
    input: list[Json]
    """The items that the request sent, without those of earlier turns."""
    output: list[Json] = field(default_factory=list)
    previous_id: str | None = None
    conversation_id: str | None = None
    is_background: bool = False


class ResponseService:
    """The stored responses of all projects, one per call. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, sealer: ContentSealer) -> None:
        self._database = database
        self._sealer = sealer

    async def save(self, owner: Owner, record: ResponseRecord, *, replaces: bool = False) -> None:
        """Stores a response that has ended. One in a conversation also adds its items to that, and unlocks
        it. `replaces`: a stored response of the same id is deleted.

        Raises ConversationNotFound, TooMuchContext, ConversationLocked: the conversation was deleted, is
        full, or belongs to another response by now.
        """
        async with self._database.write(owner.tenant_id) as session:
            rows = ResponseRepository(session, owner)
            if replaces and await rows.delete(record.id) is not None:
                await session.flush()
            rows.add_own(row_of(self._sealer, owner, record))
            await self.add_to_conversation(session, owner, record)

    async def add_to_conversation(self, session: WriteSession, owner: Owner, record: ResponseRecord) -> None:
        """Adds the items of a response to its conversation, if it has one. Raises as `save` does."""
        if record.conversation_id is None:
            return
        rows = ConversationRepository(session, owner)
        items = [*record.input, *record.output]
        await append_items(rows, self._sealer, owner, record.conversation_id, items, locked_by=record.id)
        await rows.release(record.conversation_id, record.id)

    async def find(self, owner: Owner, response_id: str) -> ResponseRecord:
        """Raises ResponseNotFound."""
        async with self._database.read(owner.tenant_id) as session:
            row = await ResponseRepository(session, owner).find(response_id)
        if row is None:
            raise ResponseNotFound(response_id)
        return record_of(self._sealer, row)

    async def delete(self, owner: Owner, response_id: str) -> None:
        """Deletes a response for good. One that runs in the background stops. Raises ResponseNotFound,
        OnLegalHold.
        """
        async with self._database.write(owner.tenant_id) as session:
            rows = ResponseRepository(session, owner)
            found = await rows.find(response_id, lock=True)
            if found is None:
                raise ResponseNotFound(response_id)
            what, held = f"response {response_id}", (response_id, found.conversation_id)
            await require_no_hold(session, owner.tenant_id, what, DataClass.RESPONSES, *held)
            num_events = await rows.num_events(response_id)
            row = await rows.delete(response_id)
            assert row is not None, "it is locked"
            removed = (
                Removed("stored_responses", 1, DataClass.RESPONSES, [response_id]),
                Removed("response_events", num_events, DataClass.RESPONSES),
            )
            await record_request(session, owner.tenant_id, owner.actor, ("response", response_id), removed)
            if row.status in UNFINISHED:
                await unlock_all(session, row.id)

    async def input_items(
        self, owner: Owner, response_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Json]:
        """Returns at most `limit` of the items that the response's request sent, beyond the item `after`.

        Raises ResponseNotFound, UnknownCursor.
        """
        items = (await self.find(owner, response_id)).input
        if newest_first:
            items = items[::-1]
        if after is not None:
            ids = [item["id"] for item in items]
            if after not in ids:
                raise UnknownCursor
            items = items[ids.index(after) + 1 :]
        return items[:limit]

    async def context(self, owner: Owner, previous_id: str) -> list[Json]:
        """Returns the items of all turns up to a response, the oldest first.

        Raises:
            ResponseNotFound: there is no such response.
            EarlierResponseGone, ResponseUnfinished, InConversation: it cannot be continued.
            TooMuchContext: the turns exceed a limit.
        """
        async with self._database.read(owner.tenant_id) as session:
            rows = ResponseRepository(session, owner)
            chain = await rows.chain(previous_id)
            _check_chain(previous_id, chain)
            found = {row.id: row for row in await rows.several([turn.id for turn in chain])}
        items: list[Json] = []
        for turn in reversed(chain):
            if turn.id not in found:  # deleted between the two queries
                raise EarlierResponseGone(previous_id, PREVIOUS)
            record = record_of(self._sealer, found[turn.id])
            items += [*record.input, *record.output]
        return items

    async def items_by_id(self, owner: Owner, item_ids: Collection[str], where: str) -> dict[str, Json]:
        """Returns stored items of the project's responses and conversations by their ids. Raises
        ItemNotFound, whose field is `where`.
        """
        found: dict[str, Json] = {}
        async with self._database.read(owner.tenant_id) as session:
            responses = await ResponseRepository(session, owner).with_items(item_ids)
            others = await ConversationRepository(session, owner).items_by_id(item_ids)
        for row in responses:
            record = record_of(self._sealer, row)
            found |= {item["id"]: item for item in (*record.input, *record.output)}
        found |= {row.id: opened_item(self._sealer, row) for row in others}
        for item_id in item_ids:
            if item_id not in found:
                raise ItemNotFound(item_id, where)
        return found


def _check_chain(previous_id: str, chain: Sequence[Turn]) -> None:
    if not chain:
        raise ResponseNotFound(previous_id, PREVIOUS)
    if chain[0].status in UNFINISHED:
        raise ResponseUnfinished(previous_id, chain[0].status, PREVIOUS)
    if chain[0].conversation_id is not None:
        raise InConversation(previous_id, chain[0].conversation_id, PREVIOUS)
    if len(chain) > MAX_TURNS:
        raise TooMuchContext(f"the response has more than {MAX_TURNS} turns before it", PREVIOUS)
    if chain[-1].previous_id is not None:
        raise EarlierResponseGone(previous_id, PREVIOUS)
    num_items, num_bytes = sum(turn.num_items for turn in chain), sum(turn.num_bytes for turn in chain)
    if num_items > MAX_ITEMS or num_bytes > MAX_BYTES:
        raise TooMuchContext(
            f"the turns up to the response have {num_items} items and {num_bytes} bytes; at most {MAX_ITEMS} "
            f"and {MAX_BYTES} are allowed",
            PREVIOUS,
        )


def row_of(sealer: ContentSealer, owner: Owner, record: ResponseRecord) -> StoredResponse:
    """Returns the record as a new row."""
    return StoredResponse(
        id=record.id,
        tenant_id=owner.tenant_id,
        project_id=owner.project_id,
        key_id=owner.key_id,
        previous_id=record.previous_id,
        conversation_id=record.conversation_id,
        is_background=record.is_background,
        submitted_at=datetime.fromtimestamp(record.submitted_at, UTC),
        expires_at=expiry(owner.keep),
        **content_of(sealer, owner, record),
    )


def content_of(sealer: ContentSealer, owner: Owner, record: ResponseRecord) -> dict[str, Any]:
    """Returns the columns that change when a background response ends."""
    items = [*record.input, *record.output]
    parts = {"body": record.body, "input": record.input, "output": record.output}
    sealed = {
        f"sealed_{part}": sealer.seal(value, owner.tenant_id, f"response.{part} {record.id}")
        for part, value in parts.items()
    }
    ids = [item["id"] for item in items]
    return {**sealed, "status": record.status, "num_items": len(items), "item_ids": ids}


def record_of(sealer: ContentSealer, row: StoredResponse) -> ResponseRecord:
    body, sent, output = (
        sealer.open(getattr(row, f"sealed_{part}"), row.tenant_id, f"response.{part} {row.id}")
        for part in ("body", "input", "output")
    )
    return ResponseRecord(
        id=row.id,
        status=row.status,
        submitted_at=row.submitted_at.timestamp(),
        body={**body, "status": row.status},
        input=sent,
        output=output,
        previous_id=row.previous_id,
        conversation_id=row.conversation_id,
        is_background=row.is_background,
    )


def expiry(keep: timedelta) -> datetime:
    """Returns when state that is written now expires."""
    return datetime.now(UTC) + keep
