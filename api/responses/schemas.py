"""Defines and decodes the requests of the Responses API, as strict msgspec structs.

As in `api.openai.schemas`: fields that would change the answer are honoured, or refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from api.errors import InvalidValue, UnsupportedParameter
from api.json_bodies import decode
from api.openai.custom_tools import CustomGrammar
from api.openai.schemas import (
    MAX_GRAMMAR_BYTES,
    MAX_TOP_LOGPROBS,
    JsonObjectFormat,
    Metadata,
    Nothing,
    Penalty,
    ReasoningEffort,
    SafetyIdentifier,
    StopString,
    Tag,
    Text,
    TextFormat,
    TokenId,
)
from api.openai.schemas import MAX_STOPS as MAX_STOPS
from api.openai.tool_schemas import MAX_TOOLS, FunctionName
from api.openapi.routing import reference
from api.responses.items import KINDS, InputTextPart, OutputTextPart, ReasoningTextPart, SummaryTextPart
from conversations.limits import MAX_ADDED, MAX_ITEMS

Item = Annotated[
    dict[str, Any],
    Meta(extra_json_schema={"anyOf": [reference(kind.__name__) for kind in KINDS.values()]}),
]
Items = Annotated[list[Item], Meta(max_length=MAX_ITEMS)]
AddedItems = Annotated[list[Item], Meta(max_length=MAX_ADDED)]
ResponseId = Annotated[str, Meta(min_length=1, max_length=128)]
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Only the first adds something. Reasoning is returned as text, never encrypted; the others belong to items
that are never there."""


class ResponseJsonSchemaFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json_schema", tag_field="type"
):
    """JSON that is valid by a schema."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
    schema: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
    description: Annotated[str, Meta(max_length=10_000)] | None = None
    strict: bool | None = None
    """Takes only the subset of JSON Schema that OpenAI's strict mode does. The output is valid either way."""

    def __post_init__(self) -> None:
        if len(self.schema) > MAX_GRAMMAR_BYTES:
            raise ValueError(
                f"`schema` has {len(self.schema)} bytes; at most {MAX_GRAMMAR_BYTES} are allowed"
            )


class ResponseText(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the text of the answer is like."""

    format: TextFormat | JsonObjectFormat | ResponseJsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """A hint that no model served here was trained on."""


class ResponseReasoning(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much the model thinks before it answers."""

    effort: ReasoningEffort | None = None
    """How long the model may think; `none`: not at all. Without it, the model's own default, and no bound."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted; the reasoning itself is returned, and its `summary` is empty."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto"] | None = None
    """The chat template decides which earlier reasoning the model sees."""
    mode: Literal["standard"] | None = None


class ConversationReference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A conversation, by its id."""

    id: ResponseId


class ResponseStreamOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    include_obfuscation: bool | None = None
    """Padding against traffic analysis. Accepted; none is sent."""


class ResponseFunctionTool(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="function", tag_field="type"
):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=100_000)] | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments, an object. None: the function takes no arguments."""
    strict: bool | None = None
    """True: `parameters` must be in OpenAI's strict subset of JSON Schema, and calls always follow it.
    Otherwise calls follow it where that is possible."""
    defer_loading: Annotated[bool, Meta(extra_json_schema={"const": False})] | None = None


class AnyTextFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="text", tag_field="type"
):
    """Any text."""


class ResponseGrammarFormat(
    CustomGrammar, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="grammar", tag_field="type"
):
    """Text of a grammar."""


class ResponseCustomTool(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="custom", tag_field="type"
):
    """A tool that is called with a text."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=100_000)] | None = None
    format: AnyTextFormat | ResponseGrammarFormat | None = None
    defer_loading: Annotated[bool, Meta(extra_json_schema={"const": False})] | None = None


ResponseTool = ResponseFunctionTool | ResponseCustomTool


class FunctionChoice(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="function", tag_field="type"
):
    """A function by its name."""

    name: FunctionName


class CustomChoice(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="custom", tag_field="type"
):
    """A custom tool by its name."""

    name: FunctionName


class AllowedToolsSelection(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="allowed_tools", tag_field="type"
):
    """Some of the tools in `tools`."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice | CustomChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


ResponseToolChoice = (
    Literal["none", "auto", "required"] | FunctionChoice | CustomChoice | AllowedToolsSelection
)


class InputFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes up the prompt of a response."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: Text | Items | None = None
    """A text, which is a message of the user, or a list of items. Needed unless `previous_response_id` or
    `conversation` is given."""
    instructions: Text | None = None
    """A system message before everything else. It is not carried over to the next response."""
    previous_response_id: ResponseId | None = None
    """Continues a stored response: its items, and those of the responses before it, precede `input`."""
    conversation: ResponseId | ConversationReference | None = None
    """The conversation whose items precede `input`, and to which input and output are added."""
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: at most one call in a response. True is the default."""
    text: ResponseText | None = None
    reasoning: ResponseReasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """`auto`: the oldest turns are left out where the input exceeds the context window. Otherwise such a
    request is refused."""


class InputTokensRequest(InputFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses/input_tokens`."""


class ResponseRequest(InputFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/responses`."""

    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    """Stores the response, so that it can be retrieved and continued: true unless the organization stores
    nothing."""
    background: bool | None = None
    """Generates after the response to this request, which has the status `queued`. Needs `store`."""
    include: Annotated[list[Includable], Meta(max_length=16)] | None = None
    """Further parts of the output. `message.output_text.logprobs`: log probabilities of the text."""
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Of tools that the service runs itself, of which there are none."""
    metadata: Metadata | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None

    # Not OpenAI's: the Open Responses specification's, and ours.
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None

    # Fields that cannot change the answer. The first two, and `metadata`, are kept for the receipt.
    user: Tag | None = None
    safety_identifier: SafetyIdentifier | None = None
    prompt_cache_key: Tag | None = None
    prompt_cache_retention: Tag | None = None
    client_metadata: Annotated[dict[Tag, Tag], Meta(max_length=64)] | None = None
    """What coding agents say of themselves; ignored."""

    # Not offered: only the neutral value passes.
    prompt: None = None
    context_management: Nothing | None = None
    moderation: None = None
    prompt_cache_options: None = None
    access_programs: None = None
    image: None = None

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)


class CreateConversationRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/conversations`."""

    items: AddedItems | None = None
    metadata: Metadata | None = None


class UpdateConversationRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/conversations/{conversation_id}`."""

    metadata: Metadata | None
    """Replaces what there was."""


class CreateItemsRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/conversations/{conversation_id}/items`."""

    items: AddedItems


BODIES = (
    ResponseRequest,
    InputTokensRequest,
    CreateConversationRequest,
    UpdateConversationRequest,
    CreateItemsRequest,
    *KINDS.values(),
    InputTextPart,
    OutputTextPart,
    ReasoningTextPart,
    SummaryTextPart,
)
"""Types of the OpenAPI document."""
FEATURES = {
    "prompt": "Stored prompts are",
    "context_management": "Context management is",
    "moderation": "Moderation is",
    "prompt_cache_options": "Options of the prompt cache are",
    "access_programs": "Access programs are",
    "image": "Image options are",
    "defer_loading": "Deferred loading of tools is",
}
"""Fields of which only a neutral value is accepted, and the features they stand for."""
TOOLS = {
    "web_search": "Web search is",
    "web_search_preview": "Web search is",
    "file_search": "File search is",
    "code_interpreter": "The code interpreter is",
    "image_generation": "Image generation is",
    "computer": "Computer use is",
    "computer_use_preview": "Computer use is",
    "mcp": "MCP servers are",
    "local_shell": "Shell tools are",
    "shell": "Shell tools are",
    "apply_patch": "The tool 'apply_patch' is",
    "tool_search": "Tool search is",
    "namespace": "Namespaces of tools are",
}
"""Types of tools that are known but not supported, and what they stand for."""

_response_decoder = msgspec.json.Decoder(ResponseRequest)
_tokens_decoder = msgspec.json.Decoder(InputTokensRequest)


def decode_response(body: bytes) -> ResponseRequest:
    """Decodes the body of a new response. Raises InvalidValue or UnsupportedParameter, naming the field."""
    request = _decoded(_response_decoder, body)
    if request.stream_options is not None and not request.stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if request.background and request.store is False:
        raise InvalidValue("'background' needs the response to be stored: leave 'store' out.", "store")
    return request


def decode_input_tokens(body: bytes) -> InputTokensRequest:
    """Decodes a request to count tokens. Raises as `decode_response` does."""
    return _decoded(_tokens_decoder, body)


def _decoded(decoder: Any, body: bytes) -> Any:
    try:
        request = decode(decoder, body, FEATURES, _raw_schema)
    except InvalidValue as error:
        raise _feature(body) or error from None
    if request.previous_response_id is not None and request.conversation is not None:
        raise InvalidValue("Give 'previous_response_id' or 'conversation', not both.", "previous_response_id")
    continues = request.previous_response_id is not None or request.conversation is not None
    if request.input is None and not continues:
        raise InvalidValue("Missing required parameter: 'input'.", "input")
    if request.input == [] and not continues:
        raise InvalidValue("'input' is empty; send at least one item.", "input")
    return request


def _raw_schema(request: InputFields) -> bytes:
    format = None if request.text is None else request.text.format
    return bytes(format.schema) if isinstance(format, ResponseJsonSchemaFormat) else b""


def _feature(body: bytes) -> UnsupportedParameter | None:
    """Returns an error naming the first unsupported tool of a body that was refused, if there is one."""
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    tools = given.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        where = f"tools[{number}].type"
        if isinstance(kind, str) and kind in TOOLS:
            return UnsupportedParameter(f"{TOOLS[kind]} not supported yet: see '{where}'.", where)
    return None
