"""Decodes and prepares the lines of a batch that are requests for responses.

A line may continue an earlier response, and is stored only if it says so. It cannot be part of a
conversation: lines run in any order, and a conversation takes one response at a time.
"""

from __future__ import annotations

import msgspec

from api.batches.preparation import PreparedLine
from api.errors import UnsupportedParameter
from api.openai.answer import Answer
from api.openai.pipeline import PreparedRequest
from api.openai.validation import ValidatedRequest
from api.responses.bodies import ended, shown
from api.responses.chat_request import chat_request
from api.responses.exchange import Exchange
from api.responses.generation import ENDPOINT, validated_input
from api.responses.items import ItemReference, stored_form
from api.responses.output import read_output
from api.responses.schemas import ResponseRequest, decode_response
from api.responses.turns import input_items, is_stored, open_turn, store
from api.services import Services
from conversations.owner import Owner
from tenants.context import TenantContext

_REFUSED = {
    "background": "Requests of a batch already run in the background: leave 'background' out.",
    "conversation": "Requests of a batch cannot be part of a conversation: leave 'conversation' out, or "
    "continue a response with 'previous_response_id'.",
}
_encode = msgspec.json.Encoder().encode


def decode_response_line(body: bytes) -> ResponseRequest:
    """Decodes a line's body, and checks its items as far as they say alone. Raises InvalidValue,
    UnsupportedParameter.
    """
    request = decode_response(body)
    for name, message in _REFUSED.items():
        if getattr(request, name):
            raise UnsupportedParameter(message, name)
    items = input_items(request)
    if request.previous_response_id is None and not any(isinstance(item, ItemReference) for item in items):
        chat_request(request, [stored_form(item) for item in items])
    return msgspec.structs.replace(request, store=bool(request.store))


async def prepare_response_line(
    services: Services, caller: TenantContext, request: ResponseRequest
) -> PreparedLine:
    """Returns a line with its context collected and encoded. Raises what `POST /v1/responses` documents."""
    will_store = is_stored(request, caller, services)
    turn = await open_turn(services, caller, request)
    prepared = await validated_input(services, caller, request, turn)

    async def body(answer: Answer, submitted: ValidatedRequest) -> bytes:
        exchange = Exchange(submitted.id, submitted.submitted_at, request, caller, turn, will_store)
        output, submission = exchange.output(), answer.submission
        await read_output(answer, output)
        response = ended(
            exchange.body(submission.model, submission.tier.value), output.finish_reason, answer.usage
        )
        if will_store:
            record = exchange.record(response, output.items)
            # A line runs again if its process ended before its result was stored.
            response["store"] = await store(services, Owner.of(caller), record, None, replaces=True)
        return _encode(shown(response, output.items))

    validated = msgspec.structs.replace(prepared, endpoint=ENDPOINT)
    return PreparedLine(PreparedRequest(validated, None, True), body)
