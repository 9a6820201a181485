"""Stores the stream events of a running background response, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from api.responses.stream import EventEncoder
from conversations.background.service import BackgroundQueue, ClaimedResponse, Event
from db.errors import DatabaseUnavailable

FLUSH = 0.25
"""Seconds between two writes."""
log = structlog.get_logger(__name__)


class EventLog:
    """The events of one attempt that are not stored yet."""

    def __init__(self, queue: BackgroundQueue, claimed: ClaimedResponse) -> None:
        self._queue = queue
        self._claimed = claimed
        self._encoder = EventEncoder(claimed.next_sequence)
        self._waiting: list[Event] = []

    def add(self, event: dict[str, Any]) -> None:
        self._waiting.append((self._encoder.sequence, self._encoder.encode(event)))

    def lifecycle(self, status: str, response: dict[str, Any]) -> None:
        self._waiting.append((self._encoder.sequence, self._encoder.lifecycle(status, response)))

    def taken(self) -> list[Event]:
        """Returns the events that wait, for the caller to store."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def keep_while(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`, and stores events meanwhile. Raises what it does, and LeaseLost."""
        doing = asyncio.ensure_future(work)
        try:
            while not doing.done():
                await asyncio.wait([doing], timeout=FLUSH)
                await self._flush()
            doing.result()
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])

    async def _flush(self) -> None:
        events = self.taken()
        if not events:
            return
        try:
            await self._queue.write_events(self._claimed, events)
        except DatabaseUnavailable as error:
            self._waiting = events + self._waiting
            log.warning("events of a response wait for the database", error=str(error))
