"""Checks a generation request against the engine's limits and maps its fields to sampling parameters."""

from __future__ import annotations

import time

import msgspec

from adapters.resolver import ResolvedModel
from api.errors import ContextLengthExceeded, InvalidValue
from api.openai.prompts import check_token_ids, context_window
from api.openai.reasoning import Thinking
from api.openai.schemas import ChatCompletionRequest, CompletionRequest, GenerationFields
from api.openai.tool_calls import OfferedTools
from billing.request_ids import new_request_id
from billing.request_metadata.content import RequestMetadata
from engine.protocol import EngineInfo, Grammar, SamplingParams
from tenants.context import TenantContext


class ValidatedRequest(msgspec.Struct, frozen=True):
    """A request that the engine can take. No quota is reserved for it yet."""

    id: str
    """`chatcmpl-...` or `cmpl-...`: also the ledger's request id, "-<k>" appended for prompt k of a list."""
    submitted_at: float
    """Unix seconds."""
    endpoint: str
    caller: TenantContext
    model: ResolvedModel
    fingerprint: str
    n: int
    """Choices per prompt."""
    prompts: list[list[int]]
    sampling: list[SamplingParams]
    """One per prompt."""
    has_max_tokens: bool
    """The caller limits the number of tokens."""
    is_streamed: bool
    grammar: Grammar | None
    """Holds for every choice; known to compile."""
    tools: OfferedTools | None = None
    thinking: Thinking | None = None
    """May precede every answer."""
    metadata: RequestMetadata | None = None
    """What the client named the request with, if that may be stored."""
    reservation_id: str = ""
    """Under which quota is reserved, if not under `id`: for a request that is generated again."""
    session: str | None = None
    """The client's `prompt_cache_key`."""
    asked_model: str = ""
    """The model's name as the client wrote it."""


def validate_chat(
    body: ChatCompletionRequest,
    prompt_ids: list[int],
    caller: TenantContext,
    model: ResolvedModel,
    info: EngineInfo,
    grammar: Grammar | None,
    tools: OfferedTools | None = None,
    thinking: Thinking | None = None,
) -> ValidatedRequest:
    """Returns the request with sampling parameters and a token budget. `tools`: what the model may call.
    `thinking`: what may precede the answer.

    `grammar`: what its fields ask for, already checked.

    Raises:
        InvalidValue: a token id outside the vocabulary, or more minimum tokens than are generated.
        ContextLengthExceeded: the prompt and `max_completion_tokens` exceed the context.
    """
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens or body.max_tokens
    validated = _validated(
        "chatcmpl", body, [prompt_ids], max_tokens, logprobs, "messages", caller, model, info
    )
    return msgspec.structs.replace(validated, grammar=grammar, tools=tools, thinking=thinking)


def validate_completion(
    body: CompletionRequest,
    prompts: list[list[int]],
    caller: TenantContext,
    model: ResolvedModel,
    info: EngineInfo,
    grammar: Grammar | None,
) -> ValidatedRequest:
    """Returns the request with sampling parameters and token budgets. Raises as `validate_chat` does."""
    validated = _validated(
        "cmpl", body, prompts, body.max_tokens, body.logprobs, "prompt", caller, model, info
    )
    return msgspec.structs.replace(validated, grammar=grammar)


def _validated(
    kind: str,
    body: GenerationFields,
    prompts: list[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    param: str,
    caller: TenantContext,
    model: ResolvedModel,
    info: EngineInfo,
) -> ValidatedRequest:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    submitted_at = time.time()
    return ValidatedRequest(
        id=new_request_id(kind, submitted_at),
        submitted_at=submitted_at,
        endpoint=_ENDPOINTS[kind],
        caller=caller,
        model=model,
        fingerprint=fingerprint(info, model),
        n=body.n or 1,
        prompts=prompts,
        sampling=[
            _sampling(body, _budget(len(prompt_ids), max_tokens, info, param), stops, logprobs, info)
            for prompt_ids in prompts
        ],
        has_max_tokens=max_tokens is not None,
        is_streamed=bool(body.stream),
        grammar=None,
        metadata=_metadata(body, caller),
        session=body.prompt_cache_key,
        asked_model=body.model,
    )


def _metadata(body: GenerationFields, caller: TenantContext) -> RequestMetadata | None:
    if not (body.user or body.safety_identifier or body.metadata) or caller.stores_nothing:
        return None
    return RequestMetadata(body.user, body.safety_identifier, body.metadata)


_ENDPOINTS = {"chatcmpl": "chat.completions", "cmpl": "completions"}


def fingerprint(info: EngineInfo, model: ResolvedModel) -> str:
    """Returns the `system_fingerprint`: equal seeds give equal answers as long as it stays the same."""
    build = f"fp_{info.base_digest[:10]}_{info.quantization}_{info.build}"
    return f"{build}_{model.adapter.digest[:10]}" if model.adapter is not None else build


def _sampling(
    body: GenerationFields, max_tokens: int, stops: tuple[str, ...], logprobs: int | None, info: EngineInfo
) -> SamplingParams:
    check_token_ids(body.logit_bias or (), info, "logit_bias")
    check_token_ids(body.stop_token_ids or (), info, "stop_token_ids")
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidValue(
            f"'min_tokens' is {min_tokens}, but at most {max_tokens} tokens are generated.", "min_tokens"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(body.temperature, 1.0),
        top_k=body.top_k or 0,
        top_p=_or(body.top_p, 1.0),
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        min_tokens=min_tokens,
        stop=stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        prompt_logprobs=logprobs if isinstance(body, CompletionRequest) and body.echo else None,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _budget(prompt_len: int, max_tokens: int | None, info: EngineInfo, param: str) -> int:
    """Returns how many tokens may be generated: `max_tokens`, or all that is left of the context."""
    left = info.context_length - prompt_len
    if max_tokens is None:
        return left
    if max_tokens > left:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_window(info)}. However, you requested "
            f"{prompt_len + max_tokens} tokens: {prompt_len} in the {param}, {max_tokens} for the answer.",
            param,
        )
    return max_tokens
