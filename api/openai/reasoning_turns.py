"""Checks the thinking that earlier turns of a conversation carry, and gives it to the chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from api.errors import InvalidValue, UnsupportedParameter


class _Turn(Protocol):
    @property
    def role(self) -> str: ...
    @property
    def reasoning(self) -> str | None: ...
    @property
    def reasoning_content(self) -> str | None: ...


def check_reasoning_turns(messages: Sequence[_Turn]) -> None:
    """Raises InvalidValue, naming the field, for thinking in a message that cannot have it."""
    for number, message in enumerate(messages):
        field = _field(message)
        if field is None:
            continue
        where = f"messages[{number}].{field}"
        if message.role != "assistant":
            raise InvalidValue(f"'{where}': only messages of the role 'assistant' have it.", where)
        if message.reasoning and message.reasoning_content and message.reasoning != message.reasoning_content:
            raise InvalidValue(
                f"'messages[{number}].reasoning' and '{where}' are two names of one text, and differ.", where
            )


def refuse_reasoning_turns(messages: Sequence[_Turn]) -> None:
    """Raises UnsupportedParameter for thinking in a message, of a model that does not think."""
    for number, message in enumerate(messages):
        field = _field(message)
        if field is not None:
            where = f"messages[{number}].{field}"
            raise UnsupportedParameter(f"This model does not reason: leave '{where}' out.", where)


def add_reasoning(turn: dict[str, Any], message: _Turn) -> None:
    """Adds a message's thinking to the turn that the chat template is given."""
    if _field(message) is not None:
        turn["reasoning_content"] = message.reasoning or message.reasoning_content


def _field(message: _Turn) -> str | None:
    """Returns the name of the field with the thinking; None without any."""
    if message.reasoning_content:
        return "reasoning_content"
    return "reasoning" if message.reasoning else None
