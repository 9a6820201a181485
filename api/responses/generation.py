"""Encodes and validates a response's request as a chat request, through the same steps."""

from __future__ import annotations

from typing import Any

import msgspec

from api.errors import ContextLengthExceeded, UnsupportedParameter
from api.openai.model_access import permitted_model
from api.openai.pipeline import validated_chat
from api.openai.validation import ValidatedRequest
from api.responses.chat_request import chat_request
from api.responses.error_names import response_names
from api.responses.exchange import Exchange
from api.responses.schemas import InputFields
from api.responses.truncation import validated_suffix
from api.responses.turns import Turn
from api.services import Services
from tenants.context import TenantContext

ENDPOINT = "responses"
"""Name of requests for responses in the ledger."""


async def validated_exchange(services: Services, exchange: Exchange) -> ValidatedRequest:
    """Returns the request under the response's id. Raises as `validated_input` does."""
    validated = await validated_input(services, exchange.caller, exchange.request, exchange.turn)
    return msgspec.structs.replace(
        validated, id=exchange.id, submitted_at=exchange.submitted_at, endpoint=ENDPOINT
    )


async def validated_input(
    services: Services, caller: TenantContext, request: InputFields, turn: Turn
) -> ValidatedRequest:
    """Returns the whole context as a chat request. Raises what `validated_chat` does, with a response's names
    of fields.
    """
    model = await permitted_model(services, caller, request.model)
    has_reasoning = services.pools[model.base].reasoning is not None
    chat = chat_request(request, _understood(turn, has_reasoning=has_reasoning))
    with response_names():
        try:
            return await validated_chat(services, caller, chat)
        except ContextLengthExceeded:
            if request.truncation != "auto":
                raise
        return await validated_suffix(chat, lambda shorter: validated_chat(services, caller, shorter))


def _understood(turn: Turn, *, has_reasoning: bool) -> list[dict[str, Any]]:
    """Returns the items that the model is given. Of a model that does not think, those of earlier turns are
    without thinking. Raises UnsupportedParameter for thinking that was sent to such a model.
    """
    if has_reasoning:
        return turn.context
    for number, item in enumerate(turn.own):
        if item["type"] == "reasoning":
            where = f"input[{number}]"
            raise UnsupportedParameter(f"This model does not reason: leave '{where}' out.", where)
    return [item for item in turn.context if item["type"] != "reasoning"]
