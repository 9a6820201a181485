"""Serves `/v1/conversations`: creates, changes and deletes conversations and their items."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Request

from api.authentication import GENERATE, authenticate
from api.json_bodies import BodyDecoders, read_json, unix
from api.openapi.routing import Router, answers, fails_with, json_body
from api.pagination import Cursor, Order
from api.responses.items import read_items
from api.responses.objects import ITEMS, ConversationDeletedObject, ConversationObject, ItemListObject
from api.responses.routes import PAGE, Include, item_list
from api.responses.schemas import (
    CreateConversationRequest,
    CreateItemsRequest,
    UpdateConversationRequest,
)
from api.responses.turns import refuse_storing, state_of, stored_items
from api.services import services_of
from conversations.errors import (
    ConversationLocked,
    ConversationNotFound,
    ItemNotFound,
    StorageForbidden,
    TooMuchContext,
)
from conversations.owner import Owner
from conversations.service import ConversationRecord
from tenants.errors import AccountSuspended
from tenants.retention.errors import OnLegalHold

router = Router(prefix="/v1/conversations", tags=["Conversations"], errors=(AccountSuspended(),))
_bodies = BodyDecoders((CreateConversationRequest, UpdateConversationRequest, CreateItemsRequest))
_MISSING = ConversationNotFound("conv_1")
_HELD = OnLegalHold("conversation conv_1", "hold_1")
_FULL = TooMuchContext("the conversation is full", "conversation")
_FORBIDDEN = StorageForbidden("Your organization stores nothing.")
_PATH = "/{conversation_id}"


def conversation_object(record: ConversationRecord) -> ConversationObject:
    return {
        "id": record.id,
        "object": "conversation",
        "created_at": unix(record.created_at),
        "metadata": record.metadata,
    }


@router.post("", operation_id="createConversation", openapi_extra=json_body("CreateConversationRequest"))
@fails_with(_FULL, _FORBIDDEN, ItemNotFound("msg_1", "items"))
async def create_conversation(request: Request) -> ConversationObject:
    """Creates a conversation, with first items if you like."""
    caller = await authenticate(request, GENERATE)
    services = services_of(request)
    body = _bodies.decode(CreateConversationRequest, await read_json(request))
    refuse_storing(caller, None)
    items = await stored_items(services, caller, read_items(body.items or (), "items"), "items")
    state = state_of(services)
    return conversation_object(await state.conversations.create(Owner.of(caller), body.metadata or {}, items))


@router.get(_PATH, operation_id="retrieveConversation")
@fails_with(_MISSING)
async def retrieve_conversation(request: Request, conversation_id: str) -> ConversationObject:
    """Retrieves a conversation, without its items."""
    caller = await authenticate(request, GENERATE)
    state = state_of(services_of(request))
    return conversation_object(await state.conversations.find(Owner.of(caller), conversation_id))


@router.post(_PATH, operation_id="updateConversation", openapi_extra=json_body("UpdateConversationRequest"))
@fails_with(_MISSING)
async def update_conversation(request: Request, conversation_id: str) -> ConversationObject:
    """Replaces the metadata of a conversation."""
    caller = await authenticate(request, GENERATE)
    body = _bodies.decode(UpdateConversationRequest, await read_json(request))
    state = state_of(services_of(request))
    return conversation_object(
        await state.conversations.update(Owner.of(caller), conversation_id, body.metadata or {})
    )


@router.delete(_PATH, operation_id="deleteConversation")
@fails_with(_MISSING, _HELD)
async def delete_conversation(request: Request, conversation_id: str) -> ConversationDeletedObject:
    """Deletes a conversation with its items for good. Responses that were stored stay."""
    caller = await authenticate(request, GENERATE)
    await state_of(services_of(request)).conversations.delete(Owner.of(caller), conversation_id)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post(
    f"{_PATH}/items",
    operation_id="createConversationItems",
    openapi_extra=json_body("CreateItemsRequest"),
)
@fails_with(_MISSING, _FULL, _FORBIDDEN, ConversationLocked("conv_1"), ItemNotFound("msg_1", "items"))
async def create_items(request: Request, conversation_id: str, include: Include = None) -> ItemListObject:
    """Adds items to the end of a conversation."""
    caller = await authenticate(request, GENERATE)
    services = services_of(request)
    body = _bodies.decode(CreateItemsRequest, await read_json(request))
    refuse_storing(caller, None)
    items = await stored_items(services, caller, read_items(body.items, "items"), "items")
    await state_of(services).conversations.add_items(Owner.of(caller), conversation_id, items)
    return item_list(items, len(items))


@router.get(f"{_PATH}/items", operation_id="listConversationItems")
@fails_with(_MISSING)
async def list_items(
    request: Request,
    conversation_id: str,
    after: Cursor = None,
    limit: Annotated[int, PAGE] = 20,
    order: Order = "desc",
    include: Include = None,
) -> ItemListObject:
    """Lists the items of a conversation."""
    caller = await authenticate(request, GENERATE)
    items = await state_of(services_of(request)).conversations.items(
        Owner.of(caller), conversation_id, after=after, limit=limit + 1, newest_first=order == "desc"
    )
    return item_list(items, limit)


@router.get(f"{_PATH}/items/{{item_id}}", operation_id="retrieveConversationItem", response_model=None)
@answers(ITEMS)
@fails_with(_MISSING, ItemNotFound("msg_1"))
async def retrieve_item(request: Request, conversation_id: str, item_id: str, include: Include = None) -> Any:
    """Retrieves an item of a conversation."""
    caller = await authenticate(request, GENERATE)
    state = state_of(services_of(request))
    return await state.conversations.item(Owner.of(caller), conversation_id, item_id)


@router.delete(f"{_PATH}/items/{{item_id}}", operation_id="deleteConversationItem")
@fails_with(_MISSING, ItemNotFound("msg_1"), ConversationLocked("conv_1"), _HELD)
async def delete_item(request: Request, conversation_id: str, item_id: str) -> ConversationObject:
    """Deletes an item of a conversation for good. Returns the conversation."""
    caller = await authenticate(request, GENERATE)
    state = state_of(services_of(request))
    return conversation_object(
        await state.conversations.delete_item(Owner.of(caller), conversation_id, item_id)
    )
