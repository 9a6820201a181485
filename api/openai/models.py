"""`/v1/models`: lists the models that a key can use, with their context length, capabilities and prices.

The fields beside OpenAI's are vLLM's where it has them (`max_model_len`). Prices are those of this moment, in
each service tier that the caller may ask for.
"""

from __future__ import annotations

import time
from typing import Literal, TypedDict

from fastapi import Request

from adapters.errors import ModelNotFound, ModelNotReady
from adapters.resolver import ModelCard
from api.authentication import READ_MODELS, authenticate
from api.openai.model_access import permitted_model
from api.openai.service_tier import requested_tier
from api.openapi.routing import Router, fails_with
from api.services import Services, services_of
from billing.rates import Rate
from tenants.context import TenantContext
from tenants.errors import AccountSuspended


class TierPrices(TypedDict):
    """Micro-USD per million tokens."""

    input: float
    cached_input: float
    """Input tokens that are in the prefix cache."""
    output: float


class Surcharge(TypedDict):
    """What another organization asks for its adapter. Micro-USD per million tokens."""

    input: int
    """Cached or not."""
    output: int


class Pricing(TypedDict):
    """Current prices."""

    currency: Literal["USD"]
    unit: Literal["micro_usd_per_million_tokens"]
    default_service_tier: str
    """The tier of requests that ask for none."""
    surcharge: Surcharge | None
    """Of an adapter that another organization shares, besides the prices, in every tier; null for others."""
    service_tiers: dict[str, TierPrices]
    """By service tier that you can ask for."""


class Capabilities(TypedDict):
    chat_completions: bool
    completions: bool
    streaming: bool
    logprobs: bool
    tools: bool
    reasoning: bool
    """Thinks before it answers: takes `reasoning_effort`."""
    vision: bool
    audio: bool
    structured_outputs: bool


class ModelObject(TypedDict):
    """A model: a base model or an adapter of one."""

    id: str
    object: Literal["model"]
    created: int
    """Unix seconds."""
    owned_by: str
    base: str
    """The base model."""
    adapter_id: str | None
    """Null for a base model."""
    version: int | None
    """The adapter's version that serves."""
    rank: int | None
    digest: str | None
    """The SHA-256 of the packed adapter."""
    max_model_len: int | None
    """The context length in tokens, prompt and completion together; null while no engine of the base is
    connected."""
    context_window: int | None
    """The same as `max_model_len`."""
    max_prompt_tokens: int | None
    capabilities: Capabilities
    pricing: Pricing
    share: str | None
    """The share under which another organization's adapter is used; null for your own and for bases."""


class ModelList(TypedDict):
    """The models that the key can use."""

    object: Literal["list"]
    data: list[ModelObject]


router = Router(prefix="/v1", tags=["Models"], errors=(AccountSuspended(),))


@router.get("/models", operation_id="listModels")
async def list_models(request: Request) -> ModelList:
    """Lists the base models, those of your adapters that serve, and those that others share with you."""
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
@fails_with(ModelNotFound("base:support"), ModelNotReady("base:support", "calibrating"))
async def retrieve_model(request: Request, model: str) -> ModelObject:
    """Retrieves a model."""
    caller = await authenticate(request, READ_MODELS)
    services = services_of(request)
    if caller.models:
        await permitted_model(services, caller, model)
    card = await services.models.card(caller.tenant_id, model)
    return _model_object(services, card, await _pricing(services, caller, card.adapter_id is not None))


router.add_api_route("/models", list_models, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/models/{model:path}", retrieve_model, methods=["HEAD"], include_in_schema=False)


async def _pricing(services: Services, caller: TenantContext, on_adapter: bool) -> Pricing:
    """Returns the prices per million tokens in each service tier of the caller's plan. Raises
    DatabaseUnavailable.
    """
    now = time.time()
    return {
        "currency": "USD",
        "unit": "micro_usd_per_million_tokens",
        "default_service_tier": requested_tier(None, caller).value,
        "surcharge": None,
        "service_tiers": {
            tier.value: _tier_prices(await services.prices.rate(terms.price_percent, now, on_adapter))
            for tier, terms in caller.plan.terms.items()
            if terms.allowed
        },
    }


def _tier_prices(rate: Rate) -> TierPrices:
    return {
        "input": _percentage(rate.input, rate.percent),
        "cached_input": _percentage(rate.cached_input, rate.percent),
        "output": _percentage(rate.output, rate.percent),
    }


def _percentage(price: int, percent: int) -> float:
    """Returns `percent` of a price, as an integer if it is a whole number of micro-USD."""
    whole, fraction = divmod(price * percent, 100)
    return whole if not fraction else price * percent / 100


def _model_object(services: Services, card: ModelCard, pricing: Pricing) -> ModelObject:
    share = card.share
    if share is not None:
        pricing = {**pricing, "surcharge": {"input": share.input, "output": share.output}}
    pool = services.pools[card.base]
    info = pool.engine.info
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
            "chat_completions": pool.text.template is not None,
            "completions": True,
            "streaming": True,
            "logprobs": True,
            "tools": pool.tool_format is not None,
            "reasoning": pool.reasoning is not None,
            "vision": False,
            "audio": False,
            "structured_outputs": pool.grammars is not None and pool.grammars.are_supported,
        },
        "pricing": pricing,
        "share": None if share is None else share.share_id,
    }
