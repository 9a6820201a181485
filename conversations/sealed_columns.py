"""Names the sealed columns of stored responses and conversations, for `tenants.rotation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conversations.models import Conversation, ConversationItem, ResponseEvents, StoredResponse
from conversations.sealing import PURPOSE
from tenants.rotation.repository import SealedColumn

Row = Mapping[str, Any]


def _of(name: str) -> Callable[[Row], str]:
    """Returns what authenticates the value that the services call `name`, of a row with an `id`."""
    return lambda row: f"{row['tenant_id']} {name} {row['id']}"


SEALED = (
    *(
        SealedColumn(f"responses: {part}", StoredResponse, f"sealed_{part}", PURPOSE, _of(f"response.{part}"))
        for part in ("body", "input", "output", "request")
    ),
    SealedColumn(
        "events of background responses",
        ResponseEvents,
        "sealed",
        PURPOSE,
        lambda row: f"{row['tenant_id']} response.events {row['response_id']} {row['sequence']}",
    ),
    SealedColumn("conversations", Conversation, "sealed_metadata", PURPOSE, _of("conversation.metadata")),
    SealedColumn(
        "items of conversations",
        ConversationItem,
        "sealed",
        PURPOSE,
        lambda row: f"{row['tenant_id']} conversation.item {row['conversation_id']} {row['id']}",
    ),
)
