"""Defines the requests of the OpenAI-compatible endpoints, as strict msgspec structs.

Limits are checked while the JSON is decoded: a list that is too long is refused without an error per entry,
and `true` is not an integer. `api/openai/decoding.py` decodes them.

There are three kinds of OpenAI fields: those that the engine honours; those that cannot change the answer,
which are accepted and kept for the receipt (`metadata`...), used for routing (`prompt_cache_key`) or ignored
(`prompt_cache_retention`...); and those that would change it but are not supported. The last are typed so
that only their neutral value passes; everything else is refused as `unsupported_parameter`, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from api.openai.tool_schemas import CallId, ToolCalls, ToolChoice, Tools

MAX_CHOICES = 128
"""Choices of one request, over all its prompts."""
MAX_STOPS = 16
MAX_MESSAGES = 2048
MAX_TOP_LOGPROBS = 20
MAX_GRAMMAR_BYTES = 256 * 1024
"""Of a schema or grammar."""
MAX_OPTIONS = 1000
"""Texts that `choice` can choose from."""

Text = Annotated[str, Meta(max_length=4_000_000)]
Tag = Annotated[str, Meta(max_length=512)]
"""Short text for the caller's own use."""
SafetyIdentifier = Annotated[str, Meta(max_length=128)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_BYTES)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
_BY_TOKEN = Meta(max_length=1024, extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}})
Nothing = Annotated[list[Any], Meta(max_length=0, extra_json_schema={"items": {}})]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A piece of a message's content. Images, audio and files are not offered."""

    type: Literal["text"]
    text: Text


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One turn. `developer` is what newer clients call `system`, and is rendered as that."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Meta(min_length=1, max_length=256)] | None = None
    """Null, or left out, only in a message with `tool_calls`."""
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    tool_calls: ToolCalls | None = None
    """Of the role `assistant`: the calls of an earlier answer."""
    tool_call_id: CallId | None = None
    """Of the role `tool`: the call whose result the message is."""
    reasoning: Text | None = None
    """Of the role `assistant`: the thinking before an earlier answer. The model sees what its chat template
    shows of it."""
    reasoning_content: Text | None = None
    """Another name of `reasoning`."""
    # Other fields of an earlier answer's message, sent back unchanged.
    refusal: None = None
    audio: None = None
    annotations: Nothing | None = None
    function_call: None = None
    parsed: Any = None
    """What the Python client read from `content`, which the model sees; ignored."""


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatTemplateOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Variables of the chat template, as clients of vLLM and SGLang send them."""

    enable_thinking: bool | None = None
    """False is the `reasoning_effort` of `none`; true lets the model think."""
    thinking: bool | None = None
    """Another name of `enable_thinking`."""


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """With `include_usage`: the usage so far on each chunk, as vLLM sends it."""
    include_obfuscation: bool | None = None
    """Padding against traffic analysis. Accepted; none is sent."""


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="text", tag_field="type"):
    """Any text."""


class JsonObjectFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json_object", tag_field="type"
):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A JSON Schema and how strictly it is read."""

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


class JsonSchemaFormat(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="json_schema", tag_field="type"
):
    """JSON that is valid by a schema."""

    json_schema: JsonSchema


class GenerationFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What chat and completions have in common."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], _BY_TOKEN] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None

    # Ours, sent through the stock client's `extra_body`.
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    regex: GrammarText | None = None
    """The answer matches this regular expression, from its beginning to its end. No look-around."""
    choice: Annotated[list[GrammarText], Meta(min_length=1, max_length=MAX_OPTIONS)] | None = None
    """The answer is one of these texts."""
    grammar: GrammarText | None = None
    """The answer is of this context-free grammar, in llguidance's dialect of Lark."""

    # Fields that cannot change the answer. The first three are kept for the request's receipt.
    user: Tag | None = None
    metadata: Metadata | None = None
    safety_identifier: SafetyIdentifier | None = None
    prompt_cache_key: Tag | None = None
    prompt_cache_retention: Tag | None = None


class ChatCompletionRequest(GenerationFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[Message],
        Meta(min_length=1, max_length=MAX_MESSAGES, examples=[[{"role": "user", "content": "Hello"}]]),
    ]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Tools | None = None
    """Functions and custom tools that the model may call."""
    tool_choice: ToolChoice | None = None
    """`none`: the model does not see the tools. `auto`, the default: it calls functions as it sees fit.
    `required`: the message consists of calls. A function or custom tool: of one call of it. `allowed_tools`:
    the model sees all tools, and calls these.
    """
    parallel_tool_calls: bool | None = None
    """False: at most one call in a message. True is the default."""
    reasoning_effort: ReasoningEffort | None = None
    """How long the model may think before it answers; `none`: not at all. Without it, the model's own
    default, and no bound."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """A hint that no model served here was trained on."""

    # Ours, sent through the stock client's `extra_body`.
    thinking_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """After so many tokens of thinking the answer begins, whatever the effort; 0: no thinking."""
    thinking_token_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Another name of `thinking_budget`, vLLM's."""
    chat_template_kwargs: ChatTemplateOptions | None = None

    # Not offered: only the neutral value passes.
    store: Annotated[bool, Meta(extra_json_schema={"const": False})] | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    moderation: None = None
    prompt_cache_options: None = None


class CompletionRequest(GenerationFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Text | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
    )
    """A text, its token ids, or a list of either: one prompt each."""
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0, with `echo` and `logprobs`: the prompt's log probabilities and nothing more."""
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    """Only as a synonym of `n`: choices are not generated to be thrown away."""

    suffix: None = None
