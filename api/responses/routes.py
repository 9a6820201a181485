"""Serves `/v1/responses`: creates, retrieves, deletes and cancels responses, and counts input tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response

from adapters.errors import ModelNotFound
from api.authentication import GENERATE, authenticate
from api.errors import InvalidValue
from api.json_bodies import read_json
from api.openai.routes import FAILURES
from api.openapi.routing import Router, answers, fails_with, json_body
from api.pagination import Cursor, Order
from api.responses.bodies import shown
from api.responses.generation import validated_input
from api.responses.objects import (
    EVENTS,
    InputTokensObject,
    ItemListObject,
    ResponseDeletedObject,
    ResponseObject,
)
from api.responses.pipeline import create_response
from api.responses.replay import event_replay
from api.responses.schemas import Includable, decode_input_tokens
from api.responses.turns import open_turn, state_of
from api.services import services_of
from conversations.errors import (
    ConversationLocked,
    NotInBackground,
    QueueFull,
    ResponseNotFound,
    ResponseUnfinished,
    StorageForbidden,
    TooMuchContext,
)
from conversations.owner import Owner
from tenants.errors import AccountSuspended
from tenants.retention.errors import OnLegalHold

router = Router(prefix="/v1/responses", tags=["Responses"], errors=(AccountSuspended(),))
PAGE = Query(ge=1, le=100, description="The largest number of items.")
Include = Annotated[
    list[Includable] | None,
    Query(alias="include[]", description="Accepted; items are returned whole in any case."),
]
_MISSING = ResponseNotFound("resp_1")
_CONTEXT = (
    _MISSING,
    ResponseUnfinished("resp_1", "queued", "previous_response_id"),
    TooMuchContext("the turns exceed a limit", "previous_response_id"),
)


@router.post(
    "",
    operation_id="createResponse",
    openapi_extra=json_body("ResponseRequest"),
    response_model=None,
)
@answers(ResponseObject, *EVENTS)
@fails_with(
    *FAILURES,
    *_CONTEXT,
    ConversationLocked("conv_1"),
    QueueFull("too many background responses"),
    StorageForbidden("Your organization stores nothing.", "store"),
)
async def create(request: Request) -> Response:
    """Generates a response, and stores it unless `store` is false."""
    caller = await authenticate(request, GENERATE)
    return await create_response(request, services_of(request), caller)


@router.post("/input_tokens", operation_id="countInputTokens", openapi_extra=json_body("InputTokensRequest"))
@fails_with(*_CONTEXT, ModelNotFound("base:support"))
async def count_input_tokens(request: Request) -> InputTokensObject:
    """Counts the tokens that an input has for a model, with its tools and earlier turns. Costs nothing."""
    caller = await authenticate(request, GENERATE)
    services = services_of(request)
    body = decode_input_tokens(await read_json(request))
    turn = await open_turn(services, caller, body)
    validated = await validated_input(services, caller, body, turn)
    return {"object": "response.input_tokens", "input_tokens": len(validated.prompts[0])}


@router.get("/{response_id}", operation_id="retrieveResponse", response_model=None)
@answers(ResponseObject, *EVENTS)
@fails_with(_MISSING, NotInBackground("only background responses can be streamed again", "stream"))
async def retrieve(
    request: Request,
    response_id: str,
    include: Include = None,
    stream: Annotated[
        bool, Query(description="Streams the events of a background response that was created so.")
    ] = False,
    starting_after: Annotated[
        int | None, Query(ge=0, le=2**53, description="With `stream`: the last event that you have.")
    ] = None,
    include_obfuscation: Annotated[bool, Query(description="Accepted; none is sent.")] = False,
) -> Any:
    """Retrieves a stored response, or streams a background response from its beginning or a later event."""
    caller = await authenticate(request, GENERATE)
    state, owner = state_of(services_of(request)), Owner.of(caller)
    record = await state.responses.find(owner, response_id)
    if stream:
        if not record.is_background:
            raise NotInBackground(
                "only background responses can be streamed again; retrieve this one without 'stream'",
                "stream",
            )
        after = -1 if starting_after is None else starting_after
        ping = services_of(request).limits.ping_interval
        return event_replay(state.background, owner, response_id, after, ping)
    if starting_after is not None:
        raise InvalidValue("'starting_after' is only allowed when 'stream' is true.", "starting_after")
    return shown(record.body, record.output)


@router.delete("/{response_id}", operation_id="deleteResponse")
@fails_with(_MISSING, OnLegalHold("response resp_1", "hold_1"))
async def delete(request: Request, response_id: str) -> ResponseDeletedObject:
    """Deletes a response for good; one that runs in the background stops. Its items stay in its
    conversation.
    """
    caller = await authenticate(request, GENERATE)
    await state_of(services_of(request)).responses.delete(Owner.of(caller), response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel", operation_id="cancelResponse")
@fails_with(_MISSING, NotInBackground("only background responses can be cancelled", "response_id"))
async def cancel(request: Request, response_id: str) -> ResponseObject:
    """Cancels a background response. What was generated is billed; one that has ended stays as it is."""
    caller = await authenticate(request, GENERATE)
    state = state_of(services_of(request))
    record = await state.background.cancel(Owner.of(caller), response_id)
    found: Any = shown(record.body, record.output)
    return found  # type: ignore[no-any-return]


@router.get("/{response_id}/input_items", operation_id="listInputItems")
@fails_with(_MISSING)
async def list_input_items(
    request: Request,
    response_id: str,
    after: Cursor = None,
    limit: Annotated[int, PAGE] = 20,
    order: Order = "desc",
    include: Include = None,
) -> ItemListObject:
    """Lists the items that a response's request sent, without those of earlier turns."""
    caller = await authenticate(request, GENERATE)
    items = await state_of(services_of(request)).responses.input_items(
        Owner.of(caller), response_id, after=after, limit=limit + 1, newest_first=order == "desc"
    )
    return item_list(items, limit)


def item_list(items: list[dict[str, Any]], limit: int) -> ItemListObject:
    """Returns a page of at most `limit` items; `items` has one more if there are more."""
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
