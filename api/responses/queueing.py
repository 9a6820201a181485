"""Queues a background response, and answers its request with the queued object or a stream of its events."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response

from api.responses.bodies import shown
from api.responses.exchange import Exchange
from api.responses.replay import event_replay
from api.responses.stream import EventEncoder
from api.responses.turns import state_of
from api.services import Services
from conversations.limits import BACKGROUND_SECONDS
from conversations.owner import Owner

_encode = msgspec.json.Encoder().encode


async def enqueue(services: Services, exchange: Exchange, model: str, tier: str) -> Response:
    """Queues a validated request. Its conversation stays locked until it has ended.

    Raises QueueFull, ConversationLocked, DatabaseUnavailable.
    """
    state, owner = state_of(services), Owner.of(exchange.caller)
    body: dict[str, Any] = {**exchange.body(model, tier), "status": "queued"}
    record = exchange.record(body, [])
    if exchange.turn.lock is not None:
        exchange.turn.lock.stop()
        assert record.conversation_id is not None
        await state.conversations.lock(owner, record.conversation_id, exchange.id, BACKGROUND_SECONDS)
    queued, events = shown(body, []), []
    if exchange.request.stream:
        encoder = EventEncoder()
        for status in ("created", "queued"):
            events.append((encoder.sequence, encoder.lifecycle(status, queued)))
    # Its items are stored with the response.
    request = msgspec.structs.replace(exchange.request, input=None)
    await state.background.add(owner, record, _encode(request), events)
    if services.background is not None:
        services.background.wake()
    if exchange.request.stream:
        return event_replay(state.background, owner, exchange.id, -1, services.limits.ping_interval)
    return Response(_encode(queued), media_type="application/json")
