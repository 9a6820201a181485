"""Adds items to a conversation and reads them, within a transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from conversations.errors import ConversationLocked, ConversationNotFound, TooMuchContext
from conversations.limits import MAX_BYTES, MAX_ITEMS
from conversations.models import Conversation, ConversationItem
from conversations.owner import Owner
from conversations.repository import ConversationRepository
from conversations.sealing import ContentSealer


async def append_items(
    rows: ConversationRepository,
    sealer: ContentSealer,
    owner: Owner,
    conversation_id: str,
    items: Sequence[dict[str, Any]],
    locked_by: str | None = None,
) -> None:
    """Adds items, each with an `id`, and starts the conversation's time to live anew.

    Args:
        locked_by: the response that must hold the conversation's lock; None: it must be free.

    Raises ConversationNotFound, ConversationLocked, TooMuchContext.
    """
    conversation = await rows.find(conversation_id, lock=True)
    if conversation is None:
        raise ConversationNotFound(conversation_id)
    require_lock(conversation, locked_by)
    added = [
        ConversationItem(
            conversation_id=conversation_id,
            id=item["id"],
            tenant_id=owner.tenant_id,
            position=conversation.last_position + number,
            sealed=sealer.seal(item, owner.tenant_id, _row(conversation_id, item["id"])),
        )
        for number, item in enumerate(items, 1)
    ]
    num_items = conversation.num_items + len(added)
    num_bytes = conversation.num_bytes + sum(len(item.sealed) for item in added)
    if num_items > MAX_ITEMS or num_bytes > MAX_BYTES:
        raise TooMuchContext(
            f"the conversation would have {num_items} items and {num_bytes} bytes; at most {MAX_ITEMS} and "
            f"{MAX_BYTES} are allowed",
            "conversation",
        )
    conversation.num_items, conversation.num_bytes = num_items, num_bytes
    conversation.last_position += len(added)
    conversation.expires_at = datetime.now(UTC) + owner.keep
    for item in added:
        rows.add_own(item)


def require_lock(conversation: Conversation, by: str | None) -> None:
    """Raises ConversationLocked unless `by` holds the conversation's lock; None: unless it is free."""
    now = datetime.now(UTC)
    is_free = conversation.locked_by is None or (conversation.locked_until or now) <= now
    if not (is_free if by is None else conversation.locked_by == by):
        raise ConversationLocked(conversation.id)


def opened_item(sealer: ContentSealer, row: ConversationItem) -> dict[str, Any]:
    """Returns the item's object."""
    item: dict[str, Any] = sealer.open(row.sealed, row.tenant_id, _row(row.conversation_id, row.id))
    return item


def _row(conversation_id: str, item_id: str) -> str:
    return f"conversation.item {conversation_id} {item_id}"
