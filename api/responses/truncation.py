"""Leaves out the oldest turns of a context that exceeds the model's context window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from api.errors import ContextLengthExceeded
from api.openai.schemas import ChatCompletionRequest, Message
from api.openai.validation import ValidatedRequest

Validate = Callable[[ChatCompletionRequest], Awaitable[ValidatedRequest]]


async def validated_suffix(chat: ChatCompletionRequest, validate: Validate) -> ValidatedRequest:
    """Returns the request with its system messages and as many of the latest turns as fit, each beginning
    with a message of the user. Raises ContextLengthExceeded if not even the last one fits, and what
    `validate` does.
    """
    starts = _starts(chat.messages)
    best: ValidatedRequest | None = None
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        try:
            best = await validate(_from(chat, starts[middle]))
        except ContextLengthExceeded:
            if middle == len(starts) - 1:
                raise
            low = middle + 1
        else:
            high = middle - 1
    assert best is not None, "the search ends at a suffix that fits or raises at the last one"
    return best


def _starts(messages: Sequence[Message]) -> list[int]:
    """Returns the places where a turn begins, the oldest first; the whole conversation is one at least."""
    return [number for number, message in enumerate(messages) if message.role == "user"] or [0]


def _from(chat: ChatCompletionRequest, start: int) -> ChatCompletionRequest:
    kept = [
        message
        for number, message in enumerate(chat.messages)
        if number >= start or message.role in ("system", "developer")
    ]
    calls = {call.id for message in kept for call in message.tool_calls or ()}
    kept = [message for message in kept if message.tool_call_id is None or message.tool_call_id in calls]
    return msgspec.structs.replace(chat, messages=kept)
