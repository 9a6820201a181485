"""Defines the types of chat and completion responses, whole and streamed, for the OpenAPI document.

`api.openai.response_bodies` encodes them by hand, for speed; tests check its output against these types.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from engine.protocol import PriorityClass

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(TypedDict):
    cached_tokens: int
    """Prompt tokens that were in the prefix cache."""


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int
    """Tokens that the model thought with before its answer."""


class UsageObject(TypedDict):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class RunningUsageObject(TypedDict):
    """Tokens of a request, or those so far."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]
    """In the last chunk."""
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    """In the last chunk."""


class _Head(TypedDict):
    id: str
    """The id that `GET /v1/generations/{generation_id}` takes."""
    created: int
    """Unix seconds."""
    model: str
    service_tier: PriorityClass
    """The service tier that the request is served in."""
    system_fingerprint: str
    """Changes when the model, its adapter or the server does."""


class TopLogprob(TypedDict):
    """A token that could have been generated."""

    token: str
    logprob: float
    bytes: list[int] | None
    """The token's UTF-8 bytes; null for a special token."""


class TokenLogprobObject(TopLogprob):
    """A token that was generated."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log probabilities of the tokens of a message."""

    content: list[TokenLogprobObject]
    refusal: None


class CalledFunctionObject(TypedDict):
    """A function and its arguments."""

    name: str
    arguments: str
    """JSON text, as the model wrote it: it may be invalid, and is cut off if `finish_reason` is `length`."""


class CalledCustomToolObject(TypedDict):
    """A custom tool and its input."""

    name: str
    input: str


class ToolCallObject(TypedDict):
    """A call of a function or of a custom tool that was offered."""

    id: str
    type: Literal["function", "custom"]
    function: NotRequired[CalledFunctionObject]
    """Of the type `function`."""
    custom: NotRequired[CalledCustomToolObject]
    """Of the type `custom`."""


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    """Null if the message has only tool calls."""
    reasoning: NotRequired[str | None]
    """What the model thought before its answer, if it may think; null if it did not."""
    reasoning_content: NotRequired[str | None]
    """The same, for clients that read it under this name."""
    tool_calls: NotRequired[list[ToolCallObject]]
    refusal: None
    annotations: list[str]
    """Always empty."""


class ChatChoice(TypedDict):
    """One of the `n` messages that were asked for."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    """`stop`: the message is complete, or a stop string was reached. `length`: a limit on tokens was
    reached. `tool_calls`: the message is complete and calls functions.
    """


class ChatCompletionObject(_Head):
    """The next message of a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageObject


class CalledFunctionDelta(TypedDict):
    name: NotRequired[str]
    """In the first piece of a call."""
    arguments: str
    """The next piece of the JSON text."""


class CalledCustomToolDelta(TypedDict):
    name: NotRequired[str]
    """In the first piece of a call."""
    input: str
    """Comes as a whole, once it is complete."""


class ToolCallDelta(TypedDict):
    """A piece of a tool call."""

    index: int
    """Which of the message's calls it belongs to."""
    id: NotRequired[str]
    """In the first piece of a call."""
    type: NotRequired[Literal["function", "custom"]]
    """In the first piece of a call."""
    function: NotRequired[CalledFunctionDelta]
    """Of the type `function`."""
    custom: NotRequired[CalledCustomToolDelta]
    """Of the type `custom`."""


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    """In the first chunk of a choice."""
    content: NotRequired[str | None]
    """Always there in answers to requests without tools of a model that does not think."""
    reasoning: NotRequired[str]
    """The next piece of what the model thinks."""
    reasoning_content: NotRequired[str]
    """The same, for clients that read it under this name."""
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    """Null until the last chunk of the choice."""


class ChatCompletionChunk(_Head):
    """A part of a streamed chat completion."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    """Empty in the chunk with the usage."""
    usage: NotRequired[RunningUsageObject | None]
    """With `include_usage`: null but in the last chunk, unless `continuous_usage_stats` is set."""


class CompletionLogprobs(TypedDict):
    """Log probabilities of tokens, in parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """Null for the first token of an echoed prompt."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where each token begins in the text."""


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionObject(_Head):
    """Continuations of one or more prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageObject


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """Null until the last chunk of the choice."""


class CompletionChunk(_Head):
    """A part of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    """Empty in the chunk with the usage."""
    usage: NotRequired[RunningUsageObject | None]
    """With `include_usage`: null but in the last chunk, unless `continuous_usage_stats` is set."""
