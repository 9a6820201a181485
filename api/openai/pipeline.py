"""Runs a generation request: decodes it, resolves its model, encodes, validates, reserves quota, submits,
responds.

A status is sent only once the engine has taken the request. No database connection is held past the look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import Request, Response

from api.errors import ApiError
from api.json_bodies import read_json
from api.openai.grammars import checked_grammar
from api.openai.model_access import permitted_model
from api.openai.outcome import OutcomeRecorder
from api.openai.prompts import echoed_texts, encode_chat, encode_prompts
from api.openai.reservation import reserve
from api.openai.respond import respond
from api.openai.schemas import (
    ChatCompletionRequest,
    decode_chat,
    decode_completion,
    named_in,
)
from api.openai.service_tier import requested_tier
from api.openai.tool_calls import offered_tools
from api.openai.validation import ValidatedRequest, validate_chat, validate_completion
from api.services import Services, engine_of
from tenants.context import TenantContext


class _NamesModel(Protocol):
    """A body that names a model and a service tier."""

    @property
    def model(self) -> str: ...
    @property
    def service_tier(self) -> str | None: ...


BodyT = TypeVar("BodyT", bound=_NamesModel)


async def chat_completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a chat completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        body = await read_body(request, decode_chat)
        validated = await validated_chat(services, caller, body)
        request.state.log |= {"model": validated.model.name, "id": validated.id}
        outcome.tier = requested_tier(body.service_tier, caller)
        reservation = await reserve(validated, outcome.tier, services.quotas, services.prices)
        return await respond(request, services, body, reservation, outcome, is_chat=True)


async def validated_chat(
    services: Services, caller: TenantContext, body: ChatCompletionRequest
) -> ValidatedRequest:
    """Resolves the model of a chat request, and encodes and validates it. Nothing is reserved."""
    model = await permitted_model(services, caller, body.model)
    info = engine_of(services)
    tools = offered_tools(body, services.text, services.tool_format)
    prompt_ids = await encode_chat(body, info, services.text, tools, services.tool_format)
    grammar = await checked_grammar(body, caller.tenant_id, services.grammars)
    return validate_chat(body, prompt_ids, caller, model, info, grammar, tools)


async def completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        body = await read_body(request, decode_completion)
        model = await permitted_model(services, caller, body.model)
        info = engine_of(services)
        prompts = await encode_prompts(body, info, services.text)
        grammar = await checked_grammar(body, caller.tenant_id, services.grammars)
        validated = validate_completion(body, prompts, caller, model, info, grammar)
        request.state.log |= {"model": model.name, "id": validated.id}
        echo = echoed_texts(body, prompts, services.text) if body.echo else None
        outcome.tier = requested_tier(body.service_tier, caller)
        reservation = await reserve(validated, outcome.tier, services.quotas, services.prices)
        return await respond(request, services, body, reservation, outcome, is_chat=False, echo=echo)


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
