"""`/v1/models`: which models a key may ask for, with their context, capabilities and prices.

The fields beside OpenAI's are vLLM's where it has them (`max_model_len`). Prices are those of this moment, in
each service tier that the caller may ask for.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from adapters.resolver import ModelCard
from api.deps import READ_MODELS, Services, authenticate, services_of
from api.openai.reservation import asked_for
from api.openai.routes import permitted_model
from api.openapi import ERROR_RESPONSES
from billing.rates import Rate
from tenants.context import TenantContext

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES, tags=["Models"])


@router.get("/models", operation_id="listModels")
async def list_models(request: Request) -> dict[str, Any]:
    """The base model and the tenant's adapters that can be called now."""
    caller = await authenticate(request, READ_MODELS)
    services = services_of(request)
    cards = [card for card in await services.models.list(caller.tenant_id) if caller.may_use(card.id)]
    prices = {
        on_adapter: await _pricing(services, caller, on_adapter)
        for on_adapter in {card.adapter_id is not None for card in cards}
    }
    data = [_model_object(services, card, prices[card.adapter_id is not None]) for card in cards]
    return {"object": "list", "data": data}


@router.get("/models/{model:path}", operation_id="retrieveModel")
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    """One model: `base`, `base:adapter`, `base:adapter@version` or an adapter's id."""
    caller = await authenticate(request, READ_MODELS)
    services = services_of(request)
    if caller.models:
        await permitted_model(services, caller, model)
    card = await services.models.card(caller.tenant_id, model)
    return _model_object(services, card, await _pricing(services, caller, card.adapter_id is not None))


router.add_api_route("/models", list_models, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/models/{model:path}", retrieve_model, methods=["HEAD"], include_in_schema=False)


async def _pricing(services: Services, caller: TenantContext, on_adapter: bool) -> dict[str, Any]:
    """What a million tokens cost in each service tier of the caller's plan. Raises DatabaseUnavailable."""
    now = time.time()
    return {
        "currency": "USD",
        "unit": "micro_usd_per_million_tokens",
        "default_service_tier": asked_for(None, caller).value,
        "service_tiers": {
            tier.value: _tier_prices(await services.prices.rate(terms.price_percent, now, on_adapter))
            for tier, terms in caller.plan.terms.items()
            if terms.allowed
        },
    }


def _tier_prices(rate: Rate) -> dict[str, float]:
    listed = {"input": rate.input, "cached_input": rate.cached_input, "output": rate.output}
    return {name: _percentage(price, rate.percent) for name, price in listed.items()}


def _percentage(price: int, percent: int) -> float:
    """An integer wherever the percentage leaves no fraction of a micro-dollar."""
    whole, fraction = divmod(price * percent, 100)
    return whole if not fraction else price * percent / 100


def _model_object(services: Services, card: ModelCard, pricing: dict[str, Any]) -> dict[str, Any]:
    info = services.engine.info
    context_length = None if info is None else info.context_length
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "base": card.base,
        "adapter_id": card.adapter_id,
        "version": card.version,
        "rank": card.rank,
        "digest": card.digest,
        "max_model_len": context_length,
        "context_window": context_length,
        "max_prompt_tokens": None if info is None else info.max_prompt_tokens,
        "capabilities": {
            "chat_completions": services.text.template is not None,
            "completions": True,
            "streaming": True,
            "logprobs": True,
            "tools": False,
            "vision": False,
            "audio": False,
            "structured_outputs": False,
        },
        "pricing": pricing,
    }
