"""Defines the fields of chat requests that offer functions and report their calls, and checks their rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from api.errors import InvalidValue, UnsupportedParameter
from api.openai.custom_tools import GRAMMAR, CustomDefinition, as_arguments, as_function
from api.openai.function_definition import FunctionDefinition, FunctionName

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 256 * 1024
"""Of one function's parameters."""
MAX_SCHEMA_DEPTH = 32
"""Levels of objects and lists within one function's parameters."""

CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class FunctionTool(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"
):
    function: FunctionDefinition


class CustomTool(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"
):
    """A tool that is called with a text instead of arguments."""

    custom: CustomDefinition

    @property
    def function(self) -> FunctionDefinition:
        """The function that the model calls in its place."""
        return as_function(self.custom)


class FunctionReference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: FunctionName


class NamedFunction(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"
):
    """A function by its name."""

    function: FunctionReference


class NamedCustomTool(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"
):
    """A custom tool by its name."""

    custom: FunctionReference

    @property
    def function(self) -> FunctionReference:
        return self.custom


NamedTool = NamedFunction | NamedCustomTool


class AllowedTools(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """Some of the functions in `tools`."""

    allowed_tools: AllowedTools


Tool = FunctionTool | CustomTool
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice


class MessageFunctionCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: FunctionName
    arguments: Annotated[str, Meta(max_length=4_000_000)]
    """JSON text, as the model wrote it."""
    parsed_arguments: Any = None
    """What the Python client read from `arguments`, which the model sees; ignored."""


class MessageToolCall(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="function"
):
    """A call in an earlier answer."""

    id: CallId
    function: MessageFunctionCall
    index: int | None = None
    """Left over from a streamed answer; ignored."""


class MessageCustomInput(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: FunctionName
    input: Annotated[str, Meta(max_length=4_000_000)]


class MessageCustomCall(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="custom"
):
    """A call of a custom tool in an earlier answer."""

    id: CallId
    custom: MessageCustomInput
    index: int | None = None
    """Left over from a streamed answer; ignored."""

    @property
    def function(self) -> MessageFunctionCall:
        """The call as the model wrote it."""
        return MessageFunctionCall(name=self.custom.name, arguments=as_arguments(self.custom.input))


MessageCall = MessageToolCall | MessageCustomCall
ToolCalls = Annotated[list[MessageCall], Meta(max_length=MAX_TOOLS)]


class _Message(Protocol):
    @property
    def role(self) -> str: ...
    @property
    def content(self) -> Any: ...
    @property
    def tool_calls(self) -> Sequence[MessageCall] | None: ...
    @property
    def tool_call_id(self) -> str | None: ...


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Raises InvalidValue or UnsupportedParameter, naming the field."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        is_custom = isinstance(tool, CustomTool)
        where = f"tools[{number}].{'custom' if is_custom else 'function'}"
        function = function_of(tool, number)
        if function.name in names:
            raise InvalidValue(f"'{where}.name': '{function.name}' is defined twice.", f"{where}.name")
        names.add(function.name)
        if function.parameters is not None and not is_custom:
            _check_parameters(function.parameters, f"{where}.parameters")
    if choice is None or choice in ("none", "auto"):
        return
    if not tools:
        raise InvalidValue("'tool_choice' needs 'tools' to choose from.", "tool_choice")
    if isinstance(choice, NamedTool):
        _check_offered(choice, names, "tool_choice")
    elif isinstance(choice, AllowedToolsChoice):
        for number, allowed in enumerate(choice.allowed_tools.tools):
            _check_offered(allowed, names, f"tool_choice.allowed_tools.tools[{number}]")


def function_of(tool: Tool, number: int) -> FunctionDefinition:
    """Returns the function that the model is offered for a tool. Raises UnsupportedParameter for a grammar
    that calls cannot be held to. `number`: its place in `tools`.
    """
    try:
        return tool.function
    except ValueError as error:
        where = f"tools[{number}].{GRAMMAR}"
        raise UnsupportedParameter(f"'{where}': {error}.", where) from None


def allowed_functions(tools: Sequence[Tool], choice: ToolChoice | None) -> dict[int, FunctionDefinition]:
    """Returns the functions that the model may call, by their place in `tools`."""
    if isinstance(choice, NamedTool):
        names = {choice.function.name}
    elif isinstance(choice, AllowedToolsChoice):
        names = {allowed.function.name for allowed in choice.allowed_tools.tools}
    else:
        names = {tool.function.name for tool in tools}
    return {number: tool.function for number, tool in enumerate(tools) if tool.function.name in names}


def must_call(choice: ToolChoice | None) -> bool:
    """Returns whether a message has to consist of calls."""
    if isinstance(choice, AllowedToolsChoice):
        return choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedTool)


def check_messages(messages: Sequence[_Message]) -> None:
    """Checks calls and results in earlier messages. Raises InvalidValue, naming the field."""
    called: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if message.tool_calls and message.role != "assistant":
            raise InvalidValue(
                f"'{where}.tool_calls': only messages of the role 'assistant' have calls.",
                f"{where}.tool_calls",
            )
        called |= {call.id for call in message.tool_calls or ()}
        if message.content is None and not (message.role == "assistant" and message.tool_calls):
            raise InvalidValue(
                f"'{where}.content' may be null only in a message with 'tool_calls'.", f"{where}.content"
            )
        if message.role == "tool" and message.tool_call_id is None:
            raise InvalidValue(
                f"Missing required parameter: '{where}.tool_call_id', the id of the call that the message "
                "answers.",
                f"{where}.tool_call_id",
            )
        if message.tool_call_id is None:
            continue
        if message.role != "tool":
            raise InvalidValue(
                f"'{where}.tool_call_id': only messages of the role 'tool' have it.", f"{where}.tool_call_id"
            )
        if message.tool_call_id not in called:
            raise InvalidValue(
                f"'{where}.tool_call_id': no earlier message has a call with this id in 'tool_calls'.",
                f"{where}.tool_call_id",
            )


def is_deeper(value: Any, levels: int) -> bool:
    """Returns whether a decoded JSON value has more levels of objects and lists than `levels`."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not layer:
            return False
    return True


def _check_parameters(schema: dict[str, Any], where: str) -> None:
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise InvalidValue(f"'{where}' is nested more than {MAX_SCHEMA_DEPTH} levels deep.", where)
    num_bytes = len(msgspec.json.encode(schema))
    if num_bytes > MAX_SCHEMA_BYTES:
        raise InvalidValue(f"'{where}' has {num_bytes} bytes; at most {MAX_SCHEMA_BYTES} are allowed.", where)
    if schema.get("type", "object") != "object":
        raise InvalidValue(
            f"'{where}.type' is {json.dumps(schema['type'])[:100]}; arguments are an 'object'.",
            f"{where}.type",
        )
    if not isinstance(schema.get("properties", {}), dict):
        raise InvalidValue(f"'{where}.properties' must be an object.", f"{where}.properties")


def _check_offered(choice: NamedTool, names: set[str], where: str) -> None:
    where = f"{where}.{'custom' if isinstance(choice, NamedCustomTool) else 'function'}.name"
    if choice.function.name not in names:
        raise InvalidValue(
            f"'{where}': no tool of this type in 'tools' is called '{choice.function.name}'.",
            where,
        )
