"""Defines the errors of stored responses and conversations. They carry data, not HTTP status codes."""

from __future__ import annotations

MAX_SHOWN = 80
"""Characters of a client's id that a message repeats."""


class ConversationError(Exception):
    """Base of the errors of stored responses and conversations. `field`: the request's field at fault."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ResponseNotFound(ConversationError):
    """The response does not exist, has expired, or belongs to another project or tenant: indistinguishable
    on purpose.
    """

    def __init__(self, response_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no response {response_id[:MAX_SHOWN]!r}", field)


class ConversationNotFound(ConversationError):
    """The conversation does not exist, has expired, or belongs to another project or tenant."""

    def __init__(self, conversation_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no conversation {conversation_id[:MAX_SHOWN]!r}", field)


class ItemNotFound(ConversationError):
    """The item does not exist where it was looked up."""

    def __init__(self, item_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no item {item_id[:MAX_SHOWN]!r}", field)


class EarlierResponseGone(ConversationError):
    """A response that the given one continues was deleted or has expired, so its turn is not known."""

    def __init__(self, response_id: str, field: str) -> None:
        super().__init__(
            f"an earlier response that {response_id[:MAX_SHOWN]!r} continues was deleted or has expired; "
            "send the items of the conversation in 'input' instead",
            field,
        )


class ResponseUnfinished(ConversationError):
    """The response has no output yet."""

    def __init__(self, response_id: str, status: str, field: str) -> None:
        super().__init__(
            f"the response {response_id[:MAX_SHOWN]!r} is {status}; wait until it is completed", field
        )


class InConversation(ConversationError):
    """The response belongs to a conversation, which has the turns before it."""

    def __init__(self, response_id: str, conversation_id: str, field: str) -> None:
        super().__init__(
            f"the response {response_id[:MAX_SHOWN]!r} belongs to a conversation; continue it with "
            f"'conversation': {conversation_id!r}",
            field,
        )


class TooMuchContext(ConversationError):
    """Stored turns exceed a limit on items, bytes or turns."""


class ConversationLocked(ConversationError):
    """Another response or request is changing the conversation."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"another response is in progress in the conversation {conversation_id[:MAX_SHOWN]!r}; retry "
            "when it has ended",
            "conversation",
        )


class StorageForbidden(ConversationError):
    """The organization stores nothing."""


class NotInBackground(ConversationError):
    """Only background responses can be cancelled and streamed again."""


class QueueFull(ConversationError):
    """The project has as many unfinished background responses as it may have."""


class LeaseLost(ConversationError):
    """Another process runs the response, or it was cancelled or deleted."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"the lease of the response {response_id!r} is lost")


class TooManyAttempts(ConversationError):
    """The processes that generated the response ended before it, again and again."""
