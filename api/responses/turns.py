"""Opens and ends the turn of a response: collects its context, locks its conversation, stores the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from api.errors import InvalidValue
from api.responses.bodies import conversation_of
from api.responses.items import (
    InputItem,
    ItemReference,
    copied,
    read_items,
    stored_form,
    user_message,
)
from api.responses.schemas import InputFields, ResponseRequest
from api.services import Services, StoredState, served
from conversations.errors import StorageForbidden
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord
from conversations.service import ConversationLock
from db.errors import DatabaseUnavailable
from tenants.context import TenantContext

Json = dict[str, Any]
log = structlog.get_logger(__name__)


@dataclass
class Turn:
    """The input of a response, and what is locked for it."""

    earlier: list[Json]
    """The items of the turns before it, in stored form."""
    own: list[Json]
    """The items that its request sent."""
    lock: ConversationLock | None = field(default=None)
    """Of its conversation."""

    @property
    def context(self) -> list[Json]:
        return [*self.earlier, *self.own]

    async def release(self) -> None:
        """Unlocks the conversation without any change of it."""
        if self.lock is not None:
            await self.lock.release()


def state_of(services: Services) -> StoredState:
    """Returns the services of stored state. Raises NotServing where this process has none."""
    return served(services.state, "Stored responses and conversations")


def is_stored(request: ResponseRequest, caller: TenantContext, services: Services) -> bool:
    """Returns whether the response is to be stored.

    Raises StorageForbidden: the organization stores nothing; NotServing: this process cannot; InvalidValue:
    a conversation changes only with a stored response.
    """
    if caller.stores_nothing or services.state is None:
        for name in ("store", "background"):
            if getattr(request, name):
                refuse_storing(caller, name)
                state_of(services)
        will_store = False
    else:
        will_store = request.store is not False
    if request.conversation is not None and not will_store:
        if caller.stores_nothing:
            refuse_storing(caller, "conversation")
        raise InvalidValue(
            "'conversation' needs the response to be stored: leave 'store' out.", "conversation"
        )
    return will_store


def refuse_storing(caller: TenantContext, field: str | None) -> None:
    """Raises StorageForbidden if the organization stores nothing."""
    if caller.stores_nothing:
        raise StorageForbidden(
            "Your organization stores no responses and conversations; send 'store': false and the whole "
            "history in 'input', or have an administrator change the organization's setting.",
            field,
        )


async def open_turn(
    services: Services, caller: TenantContext, request: InputFields, lock_for: str | None = None
) -> Turn:
    """Collects the context of a request. `lock_for`: the response for which its conversation is locked.

    Raises:
        InvalidValue, UnsupportedParameter: an item of the input.
        ConversationError: what the request refers to cannot be found, continued or locked.
    """
    items = input_items(request)
    conversation_id, lock = conversation_of(request), None
    earlier: list[Json] = []
    if conversation_id is not None or request.previous_response_id is not None:
        state, owner = state_of(services), Owner.of(caller)
        if conversation_id is not None:
            if lock_for is not None:
                lock = await state.conversations.lock(owner, conversation_id, lock_for)
                lock.keep()
            earlier = await _unlocking(lock, state.conversations.context(owner, conversation_id))
        else:
            assert request.previous_response_id is not None
            earlier = await state.responses.context(owner, request.previous_response_id)
    own = await _unlocking(lock, stored_items(services, caller, items, "input"))
    return Turn(earlier, own, lock)


def input_items(request: InputFields) -> list[InputItem]:
    """Returns the items that a request sent. Raises InvalidValue, UnsupportedParameter."""
    given = request.input
    return [user_message(given)] if isinstance(given, str) else read_items(given or (), "input")


async def _unlocking(lock: ConversationLock | None, work: Any) -> Any:
    """Returns what `work` does; releases the lock if that fails."""
    try:
        return await work
    except BaseException:
        if lock is not None:
            await lock.release()
        raise


async def stored_items(
    services: Services, caller: TenantContext, items: Sequence[InputItem], where: str
) -> list[Json]:
    """Returns items in stored form, with references replaced by copies of what they refer to. Raises
    ItemNotFound.
    """
    wanted = {item.id for item in items if isinstance(item, ItemReference)}
    found = (
        await state_of(services).responses.items_by_id(Owner.of(caller), sorted(wanted), where)
        if wanted
        else {}
    )
    return [
        copied(found[item.id]) if isinstance(item, ItemReference) else stored_form(item) for item in items
    ]


async def store(
    services: Services,
    owner: Owner,
    record: ResponseRecord,
    lock: ConversationLock | None,
    *,
    replaces: bool = False,
) -> bool:
    """Stores a response that has ended; returns whether it is stored. `replaces`: one of the same id may be
    stored already.

    A response outside a conversation is delivered even if the database is away. Raises what
    `ResponseService.save` does for one in a conversation, and DatabaseUnavailable.
    """
    try:
        await state_of(services).responses.save(owner, record, replaces=replaces)
    except DatabaseUnavailable:
        if record.conversation_id is not None:
            if lock is not None:
                await lock.release()
            raise
        log.warning("a response is not stored: the database is unavailable", id=record.id)
        return False
    except BaseException:
        if lock is not None:
            await lock.release()
        raise
    if lock is not None:
        lock.stop()
    return True
