"""Runs a generation request: decodes it, resolves its model, encodes, validates, reserves quota, submits,
responds.

A status is sent only once the engine has taken the request. No database connection is held past the look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from fastapi import Request, Response

from api.errors import ApiError
from api.json_bodies import read_json
from api.openai.decoding import decode_chat, decode_completion, named_in
from api.openai.grammars import checked_grammar
from api.openai.model_access import permitted_model
from api.openai.outcome import OutcomeRecorder
from api.openai.prompts import echoed_texts, encode_chat, encode_prompts
from api.openai.reasoning import Thinking, requested_reasoning
from api.openai.reservation import reserve
from api.openai.respond import respond
from api.openai.schemas import ChatCompletionRequest, CompletionRequest, GenerationFields
from api.openai.service_tier import requested_tier
from api.openai.tool_calls import OfferedTools, offered_tools
from api.openai.tool_constraint import message_constraint
from api.openai.validation import ValidatedRequest, validate_chat, validate_completion
from api.pools import BasePool
from api.request_trace import mark_phase
from api.services import Services
from engine.protocol import EngineInfo
from tenants.context import TenantContext


class _NamesModel(Protocol):
    """A body that names a model and a service tier."""

    @property
    def model(self) -> str: ...
    @property
    def service_tier(self) -> str | None: ...


BodyT = TypeVar("BodyT", bound=_NamesModel)


class EncodedChat(NamedTuple):
    """A conversation's tokens, what the model may call, and what may precede its answer."""

    prompt_ids: list[int]
    tools: OfferedTools | None
    thinking: Thinking | None


class PreparedRequest(NamedTuple):
    """A decoded request that the engine can take, and the texts that its choices begin with, if any."""

    validated: ValidatedRequest
    echo: list[str] | None
    is_chat: bool


async def chat_completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a chat completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        mark_phase(request, "authenticate")
        body = await read_body(request, decode_chat)
        prepared = await prepare_chat(services, caller, body)
        return await _respond(request, services, caller, body, prepared, outcome)


async def completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        mark_phase(request, "authenticate")
        body = await read_body(request, decode_completion)
        prepared = await prepare_completion(services, caller, body)
        return await _respond(request, services, caller, body, prepared, outcome)


async def prepare_chat(
    services: Services, caller: TenantContext, body: ChatCompletionRequest
) -> PreparedRequest:
    """Returns a chat request with its model resolved and its messages encoded, as `validated_chat`."""
    return PreparedRequest(await validated_chat(services, caller, body), None, True)


async def validated_chat(
    services: Services, caller: TenantContext, body: ChatCompletionRequest
) -> ValidatedRequest:
    """Resolves the model of a chat request, and encodes and validates it. Raises what the route documents;
    nothing is reserved.
    """
    model = await permitted_model(services, caller, body.model)
    pool = services.pools[model.base]
    info = pool.info()
    prompt_ids, tools, thinking = await encoded_chat(pool, info, body)
    grammar = await message_constraint(body, tools, caller.tenant_id, pool.grammars)
    return validate_chat(body, prompt_ids, caller, model, info, grammar, tools, thinking)


async def encoded_chat(pool: BasePool, info: EngineInfo, body: ChatCompletionRequest) -> EncodedChat:
    """Returns a conversation as the model is given it. Raises InvalidValue, UnsupportedParameter,
    ContextLengthExceeded.
    """
    tools = offered_tools(body, pool.text, pool.tool_format)
    reasoning = requested_reasoning(body, pool.reasoning)
    prompt_ids = await encode_chat(body, info, pool.text, tools, pool.tool_format, reasoning.template_options)
    prompt_ids, thinking = reasoning.begin(prompt_ids, pool.text, info)
    return EncodedChat(prompt_ids, tools, thinking)


async def prepare_completion(
    services: Services, caller: TenantContext, body: CompletionRequest
) -> PreparedRequest:
    """Returns a completion request with its model resolved and its prompts encoded, as `prepare_chat`."""
    model = await permitted_model(services, caller, body.model)
    pool = services.pools[model.base]
    info = pool.info()
    prompts = await encode_prompts(body, info, pool.text)
    grammar = await checked_grammar(body, caller.tenant_id, pool.grammars)
    validated = validate_completion(body, prompts, caller, model, info, grammar)
    echo = echoed_texts(body, prompts, pool.text) if body.echo else None
    return PreparedRequest(validated, echo, False)


async def _respond(
    request: Request,
    services: Services,
    caller: TenantContext,
    body: GenerationFields,
    prepared: PreparedRequest,
    outcome: OutcomeRecorder,
) -> Response:
    """Reserves quota for the request and answers it."""
    validated, echo, is_chat = prepared
    request.state.log |= {"model": validated.model.name, "id": validated.id}
    outcome.tier = requested_tier(body.service_tier, caller)
    mark_phase(request, "prepare")
    reservation = await reserve(validated, outcome.tier, services.quotas, services.prices)
    mark_phase(request, "reserve")
    return await respond(request, services, body, reservation, outcome, is_chat=is_chat, echo=echo)


async def read_body(request: Request, decode: Callable[[bytes], BodyT]) -> BodyT:
    """Returns the decoded body, and keeps in the request's state which model and service tier it asks for."""
    content = await read_json(request)
    state = request.scope["state"]
    try:
        body = decode(content)
    except ApiError:
        state["asked_for"] = named_in(content)
        raise
    state["asked_for"] = body.model, body.service_tier
    return body
