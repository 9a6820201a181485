"""Translates a response's request into the chat request that is generated from.

Items become messages: a message of the assistant and the calls that follow it are one message, an output of
a call is a message of the role `tool`. Thinking is the `reasoning` of the message after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from api.errors import InvalidValue
from api.openai.custom_tools import CustomDefinition, CustomGrammar, CustomGrammarFormat
from api.openai.decoding import check_chat
from api.openai.schemas import MAX_MESSAGES, ChatCompletionRequest, JsonSchema, JsonSchemaFormat, Message
from api.openai.tool_schemas import (
    AllowedTools,
    AllowedToolsChoice,
    CustomTool,
    FunctionDefinition,
    FunctionReference,
    FunctionTool,
    MessageCall,
    MessageCustomCall,
    MessageCustomInput,
    MessageFunctionCall,
    MessageToolCall,
    NamedCustomTool,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
)
from api.responses.error_names import response_names
from api.responses.items import texts_of, thinking_of
from api.responses.schemas import (
    AllowedToolsSelection,
    CustomChoice,
    FunctionChoice,
    InputFields,
    ResponseCustomTool,
    ResponseGrammarFormat,
    ResponseJsonSchemaFormat,
    ResponseRequest,
    ResponseTool,
    ResponseToolChoice,
)

Json = dict[str, Any]
_SAMPLING = (
    "stream", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "top_k",
    "min_p", "repetition_penalty", "stop_token_ids", "service_tier", "prompt_cache_key", "user",
    "safety_identifier", "metadata",
)  # fmt: skip


def chat_request(request: InputFields, items: Sequence[Json]) -> ChatCompletionRequest:
    """Returns the chat request for a response. `items`: the whole context in stored form, the oldest first.

    Raises InvalidValue or UnsupportedParameter, naming the field of the response's request.
    """
    effort = None if request.reasoning is None else request.reasoning.effort
    fields: Json = {"model": request.model, "reasoning_effort": effort}
    if isinstance(request, ResponseRequest):
        fields |= {name: getattr(request, name) for name in _SAMPLING}
        fields["max_completion_tokens"] = request.max_output_tokens
        if request.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    chat = ChatCompletionRequest(
        **fields,
        messages=messages_of(items, request.instructions),
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(request),
    )
    with response_names():
        check_chat(chat)
    return chat


def messages_of(items: Sequence[Json], instructions: str | None) -> list[Message]:
    """Returns the messages that items stand for. Raises InvalidValue."""
    messages: list[Message] = []
    if instructions:
        messages.append(Message(role="system", content=instructions))
    called: dict[str, str] = {}
    for item in items:
        kind = item["type"]
        if kind == "reasoning":
            _add_thinking(messages, thinking_of(item))
        elif kind == "message":
            _add_message(messages, item["role"], "\n".join(texts_of(item["content"])))
        elif kind in ("function_call", "custom_tool_call"):
            called[item["call_id"]] = kind
            _add_call(messages, item)
        else:
            messages.append(_result(item, called))
    if not messages:
        raise InvalidValue("The response has no input: send at least one item.", "input")
    if len(messages) > MAX_MESSAGES:
        raise InvalidValue(
            f"The response has {len(messages)} messages in its context; at most {MAX_MESSAGES} are allowed.",
            "input",
        )
    return messages


def _add_thinking(messages: list[Message], text: str) -> None:
    """Begins a message of the assistant with its thinking, or adds to that of the last one."""
    if not text:
        return
    if _has_only_thinking(messages):
        last = messages.pop()
        text = f"{last.reasoning}\n\n{text}"
    messages.append(Message(role="assistant", content="", reasoning=text))


def _has_only_thinking(messages: list[Message]) -> bool:
    """Returns whether the last message is thinking that waits for its answer."""
    if not messages:
        return False
    last = messages[-1]
    return last.reasoning is not None and not last.content and not last.tool_calls


def _add_message(messages: list[Message], role: Any, content: str) -> None:
    thinking = messages.pop().reasoning if role == "assistant" and _has_only_thinking(messages) else None
    messages.append(Message(role=role, content=content, reasoning=thinking))


def _add_call(messages: list[Message], item: Json) -> None:
    """Adds a call to the assistant's message before it, or as a message of its own."""
    id, name = item["call_id"], item["name"]
    call: MessageCall = (
        MessageToolCall(id=id, function=MessageFunctionCall(name=name, arguments=item["arguments"]))
        if item["type"] == "function_call"
        else MessageCustomCall(id=id, custom=MessageCustomInput(name=name, input=item["input"]))
    )
    if messages and messages[-1].role == "assistant":
        calls = [*(messages[-1].tool_calls or ()), call]
        messages[-1] = msgspec.structs.replace(messages[-1], tool_calls=calls)
    else:
        messages.append(Message(role="assistant", tool_calls=[call]))


def _result(item: Json, called: dict[str, str]) -> Message:
    kind = item["type"].removesuffix("_output")
    if called.get(item["call_id"]) != kind:
        raise InvalidValue(
            f"No item of the type '{kind}' before the item of the type '{item['type']}' has the 'call_id' "
            f"{item['call_id']!r}.",
            "input",
        )
    return Message(role="tool", tool_call_id=item["call_id"], content="\n".join(texts_of(item["output"])))


def _tool(tool: ResponseTool) -> Tool:
    if isinstance(tool, ResponseCustomTool):
        format = None
        if isinstance(tool.format, ResponseGrammarFormat):
            grammar = CustomGrammar(syntax=tool.format.syntax, definition=tool.format.definition)
            format = CustomGrammarFormat(grammar=grammar)
        return CustomTool(
            custom=CustomDefinition(name=tool.name, description=tool.description, format=format)
        )
    return FunctionTool(
        function=FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters or None,
            strict=tool.strict,
        )
    )


def _choice(choice: ResponseToolChoice | None) -> ToolChoice | None:
    if isinstance(choice, AllowedToolsSelection):
        return AllowedToolsChoice(
            allowed_tools=AllowedTools(mode=choice.mode, tools=[_named(tool) for tool in choice.tools])
        )
    return _named(choice) if isinstance(choice, FunctionChoice | CustomChoice) else choice


def _named(choice: FunctionChoice | CustomChoice) -> NamedTool:
    name = FunctionReference(name=choice.name)
    return (
        NamedFunction(function=name) if isinstance(choice, FunctionChoice) else NamedCustomTool(custom=name)
    )


def _format(request: InputFields) -> Any:
    wanted = None if request.text is None else request.text.format
    if not isinstance(wanted, ResponseJsonSchemaFormat):
        return wanted
    return JsonSchemaFormat(
        json_schema=JsonSchema(
            name=wanted.name, schema=wanted.schema, description=wanted.description, strict=wanted.strict
        )
    )
