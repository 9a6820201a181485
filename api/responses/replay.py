"""Streams the stored events of a background response, and further ones as they are stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog
from starlette.responses import StreamingResponse

from api.openai.response_bodies import DONE
from api.openai.stream import PING
from api.responses.bodies import shown
from api.responses.stream import EventEncoder
from conversations.background.service import BackgroundQueue
from conversations.errors import ResponseNotFound
from conversations.models import UNFINISHED
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord
from db.errors import DatabaseUnavailable

POLL = 0.2
"""Seconds between two looks at the stored events."""
MAX_POLL = 2.0
"""The same while nothing comes."""
TERMINAL = {
    "completed": "completed",
    "incomplete": "incomplete",
    "failed": "failed",
    "cancelled": "incomplete",
}
"""The last event by status. OpenAI has none for cancelled responses: the object within it says so."""

log = structlog.get_logger(__name__)


def event_replay(
    queue: BackgroundQueue, owner: Owner, response_id: str, after: int, ping_interval: float
) -> StreamingResponse:
    """Returns a stream of the response's events beyond the sequence number `after`. It ends with the
    response.
    """
    return StreamingResponse(
        _events(queue, owner, response_id, after, ping_interval),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _events(
    queue: BackgroundQueue, owner: Owner, response_id: str, after: int, ping_interval: float
) -> AsyncIterator[bytes]:
    sent, pause = time.monotonic(), POLL
    while True:
        try:
            page = await queue.events(owner, response_id, after)
        except DatabaseUnavailable:
            log.warning("events of a response cannot be read at the moment", id=response_id)
            page = None
        except ResponseNotFound:
            yield _error(after, "not_found", "The response was deleted.")
            return
        if page is not None and page.events:
            after = page.events[-1][0]
            yield b"".join(event for _, event in page.events)
            sent, pause = time.monotonic(), POLL
        if page is not None and page.record.status not in UNFINISHED:
            if page.record.status == "cancelled" or (not page.events and after < 0):
                yield _terminal(page.record, after)
            yield DONE
            return
        if time.monotonic() - sent >= ping_interval:
            yield PING
            sent = time.monotonic()
        await asyncio.sleep(pause)
        pause = min(MAX_POLL, pause * 1.1)


def _terminal(record: ResponseRecord, after: int) -> bytes:
    response = shown(record.body, record.output)
    return EventEncoder(after + 1).lifecycle(TERMINAL[record.status], response)


def _error(after: int, code: str, message: str) -> bytes:
    event: dict[str, Any] = {"type": "error", "code": code, "message": message, "param": None}
    return EventEncoder(after + 1).encode(event)
