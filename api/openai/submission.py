"""Turns a decoded request into what the engine is sent: prompt token ids, sampling parameters, length limits.

Owns the arithmetic of the context window and the mapping of OpenAI's fields to the engine's. A request is a
`ValidatedRequest` until its service tier and rate are chosen; then it becomes a `Submission`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

import msgspec

from adapters.resolver import ResolvedModel
from api.errors import ContextLengthExceeded, InvalidValue
from api.openai.schemas import MAX_CHOICES, ChatCompletionRequest, CompletionRequest, GenerationFields
from billing.rates import RATE_LABEL
from billing.request_ids import new_request_id
from engine.protocol import EngineInfo, PriorityClass, SamplingParams, Submit
from tenants.context import TenantContext
from tokenization.chat_template import TemplateRefusal
from tokenization.codec import TextCodec


class Submission(msgspec.Struct, frozen=True):
    """One API request on its way to the engine: a Submit per prompt, and what heads its answer."""

    id: str
    """`chatcmpl-...` or `cmpl-...`: also the ledger's request id, "-<k>" appended for prompt k of a list."""
    created: int
    """Unix seconds."""
    model: str
    """The pinned form of the model's name."""
    fingerprint: str
    tier: PriorityClass
    n: int
    """Choices per prompt."""
    submits: list[Submit]
    stops: tuple[str, ...]
    logprobs: int | None


class ValidatedRequest(msgspec.Struct, frozen=True):
    """A request that fits. Nothing was reserved for it yet."""

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
    bounded: bool
    """The caller said how many tokens it wants at most."""
    streamed: bool
    """The caller reads the answer as it comes."""

    def submission(self, tier: PriorityClass, rate_label: str) -> Submission:
        """What is sent, in the class that serves it, at the rate that its label names."""
        caller, model = self.caller, self.model
        max_wait_ms = caller.plan.terms[tier].max_wait_ms
        labels = {
            "key_id": caller.key_id,
            "model": model.name,
            "endpoint": self.endpoint,
            "service_tier": tier.value,
            RATE_LABEL: rate_label,
        }
        if caller.project_id is not None:
            labels["project_id"] = caller.project_id
        if caller.user_id is not None:
            labels["user_id"] = caller.user_id
        if model.adapter_id is not None:
            labels["adapter_id"] = model.adapter_id
            labels["adapter_version"] = str(model.version)
        single = len(self.prompts) == 1
        submits = [
            Submit(
                request_id=self.id if single else f"{self.id}-{position}",
                tenant=caller.tenant_id,
                prompt_ids=prompt_ids,
                sampling=sampling,
                adapter=model.adapter,
                priority=tier,
                n=self.n,
                labels=labels,
                submitted_at=self.submitted_at,
                ttft_target=None if max_wait_ms is None else max_wait_ms / 1000,
                whole=not self.streamed,
            )
            for position, (prompt_ids, sampling) in enumerate(zip(self.prompts, self.sampling, strict=True))
        ]
        return Submission(
            id=self.id,
            created=int(self.submitted_at),
            model=model.name,
            fingerprint=self.fingerprint,
            tier=tier,
            n=self.n,
            submits=submits,
            stops=self.sampling[0].stop,
            logprobs=self.sampling[0].logprobs,
        )


async def chat_draft(
    body: ChatCompletionRequest,
    caller: TenantContext,
    model: ResolvedModel,
    info: EngineInfo,
    text: TextCodec,
) -> ValidatedRequest:
    """Render and encode the conversation.

    Raises:
        InvalidValue: the chat template does not take it, or an id is outside the vocabulary.
        ContextLengthExceeded: it does not fit, judged before tokenising where its size alone tells.
    """
    if text.template is None:
        raise InvalidValue(f"'{info.base}' has no chat template; use /v1/completions.", "messages")
    messages = []
    for message in body.messages:
        content = message.content
        rendered = {
            "role": "system" if message.role == "developer" else message.role,
            "content": content if isinstance(content, str) else "\n".join(part.text for part in content),
        }
        if message.name is not None:
            rendered["name"] = message.name
        messages.append(rendered)
    _refuse_too_long(
        text.fewest_tokens("".join(message["content"] for message in messages)), info, "messages"
    )
    try:
        chat = text.render_chat(messages)
    except TemplateRefusal as error:
        raise InvalidValue(
            f"The model's chat template refuses these messages: {error}", "messages"
        ) from error
    prompt_ids = await text.encode_chat(chat)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens = body.max_completion_tokens or body.max_tokens
    return _draft("chatcmpl", body, [prompt_ids], max_tokens, logprobs, "messages", caller, model, info)


async def completion_draft(
    body: CompletionRequest, caller: TenantContext, model: ResolvedModel, info: EngineInfo, text: TextCodec
) -> ValidatedRequest:
    """Encode the prompt or prompts. Raises as `chat_draft` does."""
    prompts = _prompts(body.prompt)
    if len(prompts) * (body.n or 1) > MAX_CHOICES:
        raise InvalidValue(
            f"{len(prompts)} prompts of {body.n or 1} choices are more than {MAX_CHOICES} choices.", "prompt"
        )
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            _refuse_too_long(text.fewest_tokens(prompt), info, "prompt")
            encoded.append(await text.encode_prompt(prompt))
        else:
            _check_token_ids(prompt, info, "prompt")
            encoded.append(prompt)
    return _draft("cmpl", body, encoded, body.max_tokens, body.logprobs, "prompt", caller, model, info)


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Sort out OpenAI's four ways of giving prompts."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if len(kinds) > 1:
        raise InvalidValue("'prompt' mixes texts, token ids and lists of token ids.", "prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    return cast("list[str | list[int]]", prompt)


def _draft(
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
        bounded=max_tokens is not None,
        streamed=bool(body.stream),
    )


_ENDPOINTS = {"chatcmpl": "chat.completions", "cmpl": "completions"}


def fingerprint(info: EngineInfo, model: ResolvedModel) -> str:
    """`system_fingerprint`: equal seeds give equal answers as long as this stays the same."""
    build = f"fp_{info.base_digest[:10]}_{info.quantization}_{info.build}"
    return f"{build}_{model.adapter.digest[:10]}" if model.adapter is not None else build


def _sampling(
    body: GenerationFields, max_tokens: int, stops: tuple[str, ...], logprobs: int | None, info: EngineInfo
) -> SamplingParams:
    _check_token_ids(body.logit_bias or (), info, "logit_bias")
    _check_token_ids(body.stop_token_ids or (), info, "stop_token_ids")
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
    """How many tokens may be generated: what was asked for, or all that is left of the context."""
    if prompt_len == 0:
        raise InvalidValue("The prompt has no tokens.", param)
    _refuse_too_long(prompt_len, info, param, exact=True)
    left = info.context_length - prompt_len
    if max_tokens is None:
        return left
    if max_tokens > left:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {_context(info)}. However, you requested "
            f"{prompt_len + max_tokens} tokens: {prompt_len} in the {param}, {max_tokens} for the answer.",
            param,
        )
    return max_tokens


def _refuse_too_long(prompt_len: int, info: EngineInfo, param: str, exact: bool = False) -> None:
    """One token of the context at least is the completion's."""
    longest = min(info.max_prompt_tokens, info.context_length - 1)
    if prompt_len > longest:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {_context(info)}, {longest} of them for the "
            f"prompt. However, your {param} {'have' if param == 'messages' else 'has'} "
            f"{'' if exact else 'at least '}{prompt_len} tokens.",
            param,
        )


def _context(info: EngineInfo) -> str:
    return f"{info.context_length} tokens" + (" (its sliding window)" if info.sliding_window else "")


def _check_token_ids(token_ids: Iterable[int], info: EngineInfo, param: str) -> None:
    for token_id in token_ids:
        if token_id >= info.vocab_size:
            raise InvalidValue(
                f"'{param}' names token {token_id}; this model's tokens end at {info.vocab_size - 1}.", param
            )
