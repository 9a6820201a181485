"""Prepares a request's tools for its chat template, and reads the calls in its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec

from api.errors import UnsupportedParameter
from api.openai.custom_tools import read_input, shown_function
from api.openai.schemas import ChatCompletionRequest, Message
from api.openai.tool_schemas import (
    CustomTool,
    FunctionDefinition,
    MessageCall,
    NamedTool,
    allowed_functions,
    is_deeper,
    must_call,
)
from tokenization.codec import TextCodec
from tokenization.tools.deltas import CallStart, TextDelta, ToolFunction
from tokenization.tools.formats import ToolFormat

MAX_ARGUMENTS_DEPTH = 64
"""Levels of arguments that chat templates are given as objects."""


class CallDelta(NamedTuple):
    """The start of a call, or a piece of its arguments."""

    call: int
    """0 for the message's first call, and so on."""
    id: str | None
    """With the name, at the start; then None."""
    name: str | None
    arguments: str
    """Of a custom tool: its input, which comes when the call is complete."""
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The functions that a request offers, and the format of their calls."""

    format: ToolFormat
    functions: tuple[ToolFunction, ...]
    """Those that the model may call."""
    is_parallel: bool
    """Several calls in a message are allowed."""
    is_required: bool = False
    """A message consists of calls."""
    custom: frozenset[str] = frozenset()
    """Names of those that are custom tools."""

    def reader(self) -> ToolCallReader:
        """Returns a reader of one choice."""
        return ToolCallReader(self)


def offered_tools(
    body: ChatCompletionRequest, text: TextCodec, format: ToolFormat | None
) -> OfferedTools | None:
    """Returns what the model may call; None if the request offers nothing.

    A named function is called once.

    Raises:
        UnsupportedParameter: the base model cannot call functions, or not be shown the calls of earlier
            messages.
    """
    _check_history(body.messages, text)
    if not body.tools or body.tool_choice == "none":
        return None
    if format is None:
        raise UnsupportedParameter(
            "This model does not support tools: its chat template has no place for them, or a format that is "
            "not known. Leave 'tools' out.",
            "tools",
        )
    allowed = allowed_functions(body.tools, body.tool_choice)
    functions = tuple(ToolFunction(one.name, one.parameters or {}) for one in allowed.values())
    is_parallel = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool)
    custom = frozenset(tool.function.name for tool in body.tools if isinstance(tool, CustomTool))
    return OfferedTools(format, functions, is_parallel, must_call(body.tool_choice), custom)


def _check_history(messages: Sequence[Message], text: TextCodec) -> None:
    if text.template is None or text.template.takes_tools:
        return
    for number, message in enumerate(messages):
        if message.tool_calls or message.role == "tool":
            field = "tool_calls" if message.tool_calls else "role"
            raise UnsupportedParameter(
                "This model does not support tools: its chat template has no place for calls and their "
                f"results. See 'messages[{number}].{field}'.",
                f"messages[{number}].{field}",
            )


def template_tools(body: ChatCompletionRequest) -> list[dict[str, Any]]:
    """Returns the request's functions as chat templates expect them."""
    return [
        {
            "type": "function",
            "function": shown_function(tool.custom)
            if isinstance(tool, CustomTool)
            else _template_function(tool.function),
        }
        for tool in body.tools or ()
    ]


def _template_function(function: FunctionDefinition) -> dict[str, Any]:
    description = {} if function.description is None else {"description": function.description}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"name": function.name, **description, "parameters": parameters}


def add_call_fields(
    turn: dict[str, Any], message: Message, names: dict[str, str], format: ToolFormat | None
) -> None:
    """Adds a message's calls, or the call that it answers, to the turn that the chat template is given.

    `names`: the functions of earlier calls by id; the message's own are added.
    """
    if message.tool_calls:
        turn["tool_calls"] = [_template_call(call, format) for call in message.tool_calls]
        names.update((call.id, call.function.name) for call in message.tool_calls)
    if message.tool_call_id is not None:
        turn["tool_call_id"] = _template_id(message.tool_call_id, format)
        turn.setdefault("name", names[message.tool_call_id])


def _template_call(call: MessageCall, format: ToolFormat | None) -> dict[str, Any]:
    return {
        "id": _template_id(call.id, format),
        "type": "function",
        "function": {"name": call.function.name, "arguments": _template_arguments(call.function.arguments)},
    }


def _template_arguments(written: str) -> Any:
    """Returns arguments as the object that templates expect; text that is no JSON object as it is."""
    try:
        arguments = msgspec.json.decode(written or "{}")
    except (msgspec.DecodeError, RecursionError):
        return written
    is_object = isinstance(arguments, dict) and not is_deeper(arguments, MAX_ARGUMENTS_DEPTH)
    return arguments if is_object else written


def _template_id(call_id: str, format: ToolFormat | None) -> str:
    length = None if format is None else format.parser.call_id_length
    if length is None or (len(call_id) == length and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:length]


class ToolCallReader:
    """Reads one choice: splits its text into content and calls."""

    __slots__ = ("_custom", "_input", "_is_parallel", "_parser", "num_calls")

    def __init__(self, tools: OfferedTools) -> None:
        self._parser = tools.format.parser(tools.functions)
        self._is_parallel = tools.is_parallel
        self._custom = tools.custom
        self._input: list[str] | None = None
        """Arguments of the last call so far, if it is one of a custom tool."""
        self.num_calls = 0

    def read(self, text: str, is_last: bool) -> tuple[str, list[CallDelta]]:
        """Returns the content and the pieces of calls that are certain after `text`."""
        deltas = self._parser.push(text)
        if is_last:
            deltas += self._parser.finish()
        content: list[str] = []
        calls: list[CallDelta] = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                content.append(delta.text)
            elif delta.call and not self._is_parallel:
                continue
            elif isinstance(delta, CallStart):
                calls += self._ended()
                is_custom = delta.name in self._custom
                self._input = [] if is_custom else None
                self.num_calls += 1
                calls.append(CallDelta(delta.call, f"call_{token_hex(12)}", delta.name, "", is_custom))
            elif self._input is not None:
                self._input.append(delta.text)
            else:
                calls.append(CallDelta(delta.call, None, None, delta.text))
        if is_last:
            calls += self._ended()
        return "".join(content), calls

    def _ended(self) -> list[CallDelta]:
        """Returns the input of the last call, if it is one of a custom tool. Its text is within a JSON
        string, whose escapes are read once it is complete.
        """
        if self._input is None:
            return []
        text, self._input = read_input("".join(self._input)), None
        return [CallDelta(self.num_calls - 1, None, None, text, True)] if text else []


def streamed_call(delta: CallDelta) -> dict[str, Any]:
    """Returns the entry of a chunk's `tool_calls`."""
    if delta.is_custom:
        if delta.id is None:
            return {"index": delta.call, "custom": {"input": delta.arguments}}
        custom = {"name": delta.name, "input": delta.arguments}
        return {"index": delta.call, "id": delta.id, "type": "custom", "custom": custom}
    if delta.id is None:
        return {"index": delta.call, "function": {"arguments": delta.arguments}}
    return {
        "index": delta.call,
        "id": delta.id,
        "type": "function",
        "function": {"name": delta.name, "arguments": delta.arguments},
    }


def whole_calls(deltas: Sequence[CallDelta]) -> list[dict[str, Any]]:
    """Returns the `tool_calls` of a message."""
    calls: list[dict[str, Any]] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if delta.id is not None:
            kind = "custom" if delta.is_custom else "function"
            calls.append({"id": delta.id, "type": kind, kind: {"name": delta.name}})
            arguments.append([])
        arguments[delta.call].append(delta.arguments)
    for call, written in zip(calls, arguments, strict=True):
        if call["type"] == "custom":
            call["custom"]["input"] = "".join(written)
        else:
            call["function"]["arguments"] = "".join(written)
    return calls
