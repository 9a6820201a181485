"""Maps errors of stored responses and conversations to HTTP responses."""

from __future__ import annotations

from api.error_mapping import INTERNAL, INVALID, NOT_FOUND, ErrorResponse
from conversations.errors import (
    ConversationLocked,
    ConversationNotFound,
    EarlierResponseGone,
    InConversation,
    ItemNotFound,
    LeaseLost,
    NotInBackground,
    QueueFull,
    ResponseNotFound,
    ResponseUnfinished,
    StorageForbidden,
    TooManyAttempts,
    TooMuchContext,
)

_INVALID = ErrorResponse(400, INVALID, "invalid_value", retry=False)
ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    ResponseNotFound: NOT_FOUND,
    ConversationNotFound: NOT_FOUND,
    ItemNotFound: NOT_FOUND,
    EarlierResponseGone: _INVALID,
    ResponseUnfinished: ErrorResponse(409, "conflict_error", "response_unfinished", retry=False),
    InConversation: _INVALID,
    TooMuchContext: ErrorResponse(400, INVALID, "context_length_exceeded", retry=False),
    ConversationLocked: ErrorResponse(
        409, "conflict_error", "conversation_locked", retry=True, retry_after=1
    ),
    StorageForbidden: ErrorResponse(400, INVALID, "storage_not_allowed", retry=False),
    NotInBackground: _INVALID,
    QueueFull: ErrorResponse(429, "rate_limit_error", "rate_limit_exceeded", retry=True, retry_after=5),
    # Within the processes that run background responses only.
    LeaseLost: INTERNAL,
    TooManyAttempts: ErrorResponse(500, "server_error", "generation_failed", retry=False),
}
