"""Defines the types of responses, their items and events, and conversations, for the OpenAPI document.

`api.responses.bodies`, `output` and `items` build them; tests check what they build against these types and
those of OpenAI's client.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from api.openai.objects import TokenLogprobObject
from api.openapi.routing import reference
from engine.protocol import PriorityClass

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputTextObject(TypedDict):
    """A piece of the answer's text."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)]
    logprobs: list[TokenLogprobObject]
    """Filled if `include` asks for it."""


class SummaryTextObject(TypedDict):
    """A piece of a summary that was sent."""

    type: Literal["summary_text"]
    text: str


class InputTextObject(TypedDict):
    """A piece of text that was sent."""

    type: Literal["input_text"]
    text: str


class OutputMessageObject(TypedDict):
    """A message that the model wrote."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputTextObject]
    phase: NotRequired[Literal["commentary", "final_answer"]]


class InputMessageObject(TypedDict):
    """A message that was sent."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["user", "system", "developer"]
    content: list[InputTextObject]
    phase: NotRequired[Literal["commentary", "final_answer"]]


class FunctionCallObject(TypedDict):
    """A function call of the model."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    """Send it back with the result, as `call_id` of a `function_call_output`."""
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class CallOutputObject(TypedDict):
    """The result of a call."""

    id: str
    type: Literal["function_call_output", "custom_tool_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[InputTextObject]
    name: NotRequired[str]


class CustomToolCallObject(TypedDict):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    input: str


class ReasoningTextObject(TypedDict):
    """A piece of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutputObject(TypedDict):
    """The model's reasoning before the message or call that follows."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryTextObject]
    """Empty, unless the item was sent with one."""
    content: list[ReasoningTextObject]


def _one_of(*names: str) -> Meta:
    return Meta(extra_json_schema={"anyOf": [reference(name) for name in names]})


_OUTPUT = ("OutputMessage", "FunctionCall", "CustomToolCall", "ReasoningOutput")
OutputItem = Annotated[dict[str, Any], _one_of(*_OUTPUT)]
AnyItem = Annotated[dict[str, Any], _one_of(*_OUTPUT, "InputMessage", "CallOutput")]
ITEMS = (
    OutputMessageObject,
    InputMessageObject,
    FunctionCallObject,
    CallOutputObject,
    CustomToolCallObject,
    ReasoningOutputObject,
)
"""Types that the document has besides those of operations."""


class ResponseErrorObject(TypedDict):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    param: str | None
    type: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseInputDetails(TypedDict):
    cached_tokens: int
    """Input tokens that were in the prefix cache."""
    cache_write_tokens: Literal[0]


class ResponseOutputDetails(TypedDict):
    reasoning_tokens: int
    """Output tokens that were thinking."""


class ResponseUsageObject(TypedDict):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ConversationIdObject(TypedDict):
    """The conversation of a response."""

    id: str


class ReasoningObject(TypedDict):
    effort: str | None
    summary: str | None


class TextSettingsObject(TypedDict):
    format: dict[str, Any]
    """As it was requested."""
    verbosity: str


class ResponseObject(TypedDict):
    """A response."""

    id: str
    """The id that `GET /v1/generations/{generation_id}` takes, too."""
    object: Literal["response"]
    created_at: int
    """Unix seconds."""
    status: ResponseStatus
    background: bool
    completed_at: int | None
    """Unix seconds; null unless completed."""
    error: ResponseErrorObject | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationIdObject | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: ReasoningObject
    safety_identifier: str | None
    service_tier: PriorityClass
    """The service tier that the response is served in."""
    store: bool
    """Whether it is stored."""
    temperature: float
    text: TextSettingsObject
    tool_choice: str | dict[str, Any]
    """As it was requested."""
    tools: list[dict[str, Any]]
    """As they were requested."""
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsageObject | None
    """Null until the response has ended."""
    user: str | None
    metadata: dict[str, str]


class ResponseDeletedObject(TypedDict):
    """Says that a response is deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokensObject(TypedDict):
    """How many tokens an input has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ItemListObject(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[AnyItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationObject(TypedDict):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    """Unix seconds."""
    metadata: dict[str, str]


class ConversationDeletedObject(TypedDict):
    """Says that a conversation is deleted."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


# Events -------------------------------------------------------------------------------------------------


class LifecycleEvent(TypedDict):
    """The response has reached another state. The last of them has the whole output."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseObject


class ItemEvent(TypedDict):
    """An item has begun, or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    item: OutputItem


class _Place(TypedDict):
    sequence_number: int
    item_id: str
    output_index: int


class PartEvent(_Place):
    """A part of a message or of thinking has begun, or is complete."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: Literal[0]
    part: Annotated[dict[str, Any], _one_of("OutputText", "ReasoningText")]


class TextDeltaEvent(_Place):
    """New text of a message."""

    type: Literal["response.output_text.delta"]
    content_index: Literal[0]
    delta: str
    logprobs: list[TokenLogprobObject]


class TextDoneEvent(_Place):
    """The text of a message is complete."""

    type: Literal["response.output_text.done"]
    content_index: Literal[0]
    text: str
    logprobs: list[TokenLogprobObject]


class ReasoningDeltaEvent(_Place):
    """New reasoning."""

    type: Literal["response.reasoning_text.delta"]
    content_index: Literal[0]
    delta: str


class ReasoningDoneEvent(_Place):
    """The reasoning is complete."""

    type: Literal["response.reasoning_text.done"]
    content_index: Literal[0]
    text: str


class CallDeltaEvent(_Place):
    """A piece of a call's arguments or input."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDoneEvent(_Place):
    """The arguments of a function call are complete."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class CustomInputDoneEvent(_Place):
    """The input of a custom tool's call is complete."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class ErrorEvent(TypedDict):
    """The stream of a background response has broken off."""

    type: Literal["error"]
    sequence_number: int
    code: str
    message: str
    param: str | None


EVENTS = (
    LifecycleEvent,
    ItemEvent,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    CallDeltaEvent,
    ArgumentsDoneEvent,
    CustomInputDoneEvent,
    ErrorEvent,
)
