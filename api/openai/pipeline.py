"""Runs a generation request: decodes it, resolves its model, encodes, validates, reserves quota, submits,
responds.

A status is sent only once the engine has taken the request. No database connection is held past the look-ups.
"""

from __future__ import annotations

from fastapi import Request, Response

from api.json_bodies import read_json
from api.openai.model_access import permitted_model
from api.openai.outcome import OutcomeRecorder
from api.openai.prompts import echoed_texts, encode_chat, encode_prompts
from api.openai.reservation import reserve
from api.openai.respond import respond
from api.openai.schemas import decode_chat, decode_completion
from api.openai.service_tier import requested_tier
from api.openai.validation import validate_chat, validate_completion
from api.services import Services, engine_of
from tenants.context import TenantContext


async def chat_completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a chat completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        body = decode_chat(await read_json(request))
        model = await permitted_model(services, caller, body.model)
        info = engine_of(services)
        prompt_ids = await encode_chat(body, info, services.text)
        validated = validate_chat(body, prompt_ids, caller, model, info)
        request.state.log |= {"model": model.name, "id": validated.id}
        outcome.tier = requested_tier(body.service_tier, caller)
        reservation = await reserve(validated, outcome.tier, services.quotas, services.prices)
        return await respond(request, services, body, reservation, outcome, is_chat=True)


async def completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a completion request of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        body = decode_completion(await read_json(request))
        model = await permitted_model(services, caller, body.model)
        info = engine_of(services)
        prompts = await encode_prompts(body, info, services.text)
        validated = validate_completion(body, prompts, caller, model, info)
        request.state.log |= {"model": model.name, "id": validated.id}
        echo = echoed_texts(body, prompts, services.text) if body.echo else None
        outcome.tier = requested_tier(body.service_tier, caller)
        reservation = await reserve(validated, outcome.tier, services.quotas, services.prices)
        return await respond(request, services, body, reservation, outcome, is_chat=False, echo=echo)
