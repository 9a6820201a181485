"""Defines the items of a response's input, and reads them strictly: messages, calls and their outputs.

Items are stored and listed in one form, whichever of several ways a client wrote them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from api.errors import ApiError, InvalidValue, UnsupportedParameter
from api.json_bodies import convert
from api.openai.schemas import Text
from api.openai.tool_schemas import CallId, FunctionName
from api.openapi.routing import reference
from conversations.limits import MAX_ITEMS
from db.base import new_id

MAX_PARTS = 256
ItemId = Annotated[str, Meta(max_length=128)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A piece of text. Images, audio and files are not offered."""

    type: Literal["input_text", "text"]
    text: Text
    prompt_cache_breakpoint: None = None


class OutputTextPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A piece of an earlier answer."""

    type: Literal["output_text"]
    text: Text
    annotations: Annotated[list[Any], Meta(max_length=0, extra_json_schema={"items": {}})] | None = None
    logprobs: list[Any] | None = None
    """Left over from an answer; ignored."""


MessageParts = Annotated[
    list[
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema={"anyOf": [reference("InputTextPart"), reference("OutputTextPart")]}),
        ]
    ],
    Meta(min_length=1, max_length=MAX_PARTS),
]
OutputParts = Annotated[
    list[Annotated[dict[str, Any], Meta(extra_json_schema=reference("InputTextPart"))]],
    Meta(min_length=1, max_length=MAX_PARTS),
]


class InputMessageItem(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A message."""

    role: Literal["user", "system", "developer", "assistant"]
    content: Text | MessageParts
    type: Literal["message"] = "message"
    id: ItemId | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    """Stored with the message. No model served here was trained on it."""


class _OfCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What calls and their results have in common."""

    call_id: CallId
    id: ItemId | None = None
    status: ItemStatus | None = None
    namespace: None = None
    caller: None = None


class FunctionCallItem(_OfCall, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A function call in an earlier answer."""

    type: Literal["function_call"]
    name: FunctionName
    arguments: Text
    """JSON text, as the model wrote it."""


class FunctionCallOutputItem(_OfCall, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a function call."""

    type: Literal["function_call_output"]
    output: Text | OutputParts
    name: FunctionName | None = None
    """Of the function; the call has it."""


class CustomToolCallItem(_OfCall, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    name: FunctionName
    input: Text


class CustomToolCallOutputItem(_OfCall, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of a custom tool's call."""

    type: Literal["custom_tool_call_output"]
    output: Text | OutputParts
    name: FunctionName | None = None


class ReasoningTextPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A piece of an earlier answer's reasoning."""

    type: Literal["reasoning_text"]
    text: Text


class SummaryTextPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A piece of a summary of reasoning, in place of the reasoning itself."""

    type: Literal["summary_text"]
    text: Text


class ReasoningItem(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reasoning before the message or call that follows."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryTextPart], Meta(max_length=MAX_PARTS)] | None = None
    """Stands for the reasoning where there is no `content`."""
    content: Annotated[list[ReasoningTextPart], Meta(max_length=MAX_PARTS)] | None = None
    encrypted_content: None = None
    """Reasoning is returned as text; what another service encrypted cannot be read."""
    id: ItemId | None = None
    status: ItemStatus | None = None


class ItemReference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stored item, by its id."""

    id: Annotated[str, Meta(min_length=1, max_length=128)]
    type: Literal["item_reference"] | None = None


InputItem = (
    InputMessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | ReasoningItem
    | ItemReference
)
KINDS: dict[str, type[Struct]] = {
    "message": InputMessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": CustomToolCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
FEATURES = {
    "input_image": "Images are",
    "input_file": "Files are",
    "input_audio": "Audio is",
    "refusal": "Refusals in a message are",
    "web_search_call": "Web search is",
    "file_search_call": "File search is",
    "computer_call": "Computer use is",
    "computer_call_output": "Computer use is",
    "code_interpreter_call": "The code interpreter is",
    "image_generation_call": "Image generation is",
    "local_shell_call": "Shell tools are",
    "local_shell_call_output": "Shell tools are",
    "shell_call": "Shell tools are",
    "shell_call_output": "Shell tools are",
    "apply_patch_call": "The tool 'apply_patch' is",
    "apply_patch_call_output": "The tool 'apply_patch' is",
    "mcp_list_tools": "MCP servers are",
    "mcp_approval_request": "MCP servers are",
    "mcp_approval_response": "MCP servers are",
    "mcp_call": "MCP servers are",
    "tool_search_call": "Tool search is",
    "tool_search_output": "Tool search is",
    "additional_tools": "Tools within the input are",
    "compaction": "Compaction is",
    "compaction_trigger": "Compaction is",
}
"""Types of items and parts that are known but not supported, and what they stand for."""


def read_items(given: Sequence[dict[str, Any]], where: str) -> list[InputItem]:
    """Returns the items. `where`: the name of the field. Raises InvalidValue or UnsupportedParameter, naming
    the part at fault.
    """
    if len(given) > MAX_ITEMS:
        raise InvalidValue(f"'{where}' has {len(given)} items; at most {MAX_ITEMS} are allowed.", where)
    return [_read(item, f"{where}[{number}]") for number, item in enumerate(given)]


def _read(item: dict[str, Any], where: str) -> InputItem:
    kind = item.get("type")
    if kind is None:
        kind = "item_reference" if set(item) <= {"id", "type"} and "id" in item else "message"
    if not isinstance(kind, str) or kind not in KINDS:
        raise _unknown(kind, f"{where}.type", "an item")
    read: Any = convert(item, KINDS[kind], where)
    for field in ("content", "output"):
        parts = getattr(read, field, None)
        if isinstance(parts, list):
            for number, part in enumerate(parts if kind != "reasoning" else ()):
                _check_part(part, f"{where}.{field}[{number}]", is_message=field == "content")
    found: InputItem = read
    return found


def _check_part(part: dict[str, Any], where: str, is_message: bool) -> None:
    kind = part.get("type")
    if kind in ("input_text", "text"):
        convert(part, InputTextPart, where)
    elif kind == "output_text" and is_message:
        convert(part, OutputTextPart, where)
    else:
        raise _unknown(kind, f"{where}.type", "a part of a message")


def _unknown(kind: Any, where: str, what: str) -> ApiError:
    if isinstance(kind, str) and kind in FEATURES:
        return UnsupportedParameter(f"{FEATURES[kind]} not supported yet: see '{where}'.", where)
    if kind is None:
        return InvalidValue(f"Missing required parameter: '{where}'.", where)
    shown = msgspec.json.encode(kind).decode(errors="replace")[:60]
    return InvalidValue(f"Invalid value for '{where}': {shown} is not the type of {what}.", where)


def stored_form(item: InputItem) -> dict[str, Any]:
    """Returns the item as it is stored and listed, with an id of its own."""
    assert not isinstance(item, ItemReference), "references are replaced by what they refer to"
    said = {
        name: value
        for name, value in msgspec.structs.asdict(item).items()
        if value is not None and name not in ("id", "status")
    }
    if isinstance(item, InputMessageItem):
        kind = "output_text" if item.role == "assistant" else "input_text"
        said["content"] = [_part(kind, text) for text in texts_of(item.content)]
    elif isinstance(item, ReasoningItem):
        said |= msgspec.to_builtins({"summary": item.summary or [], "content": item.content or []})
    elif isinstance(said.get("output"), list):
        said["output"] = [_part("input_text", text) for text in texts_of(said["output"])]
    status = item.status or "completed"
    return {"id": new_id(_PREFIXES[item.type]), "status": status, **said}


def copied(item: dict[str, Any]) -> dict[str, Any]:
    """Returns a stored item under a new id."""
    return {**item, "id": new_id(_PREFIXES[item["type"]])}


def texts_of(content: str | Sequence[dict[str, Any]]) -> list[str]:
    """Returns the text of each part."""
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def thinking_of(item: dict[str, Any]) -> str:
    """Returns the text of a reasoning item in stored form; that of its summary where it has no other."""
    return "\n\n".join(texts_of(item["content"] or item["summary"]))


def _part(kind: str, text: str) -> dict[str, Any]:
    extra: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **extra}


def user_message(text: str) -> InputMessageItem:
    """Returns the item that an `input` of one text stands for."""
    return InputMessageItem(role="user", content=text)
