"""Records refused calls of one API process, and sends them to a Redis stream every second.

Recording never waits and never fails: what does not fit into memory is dropped and counted. A call that may
or may not have arrived is sent again, and stored once (`tenants.refusals.intake`). A process that is killed
loses at most the last second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from secrets import token_hex
from typing import Any

import msgspec
import redis.asyncio
import structlog

from db.stream import StreamProducer
from telemetry.tasks import cancel

log = structlog.get_logger(__name__)

STREAM = "rootstock:refused"
"""The Redis stream. An entry has either a `call` (a RefusedRequest) or `counts` (a list of HourCount), in
MessagePack.
"""
FLUSH_SECONDS = 1.0
MAX_LISTED_PER_MINUTE = 100
"""Calls of one tenant that a process lists in a minute; more are counted only."""
MAX_WAITING = 10_000
"""Calls held in memory while Redis is unavailable."""
MAX_IN_STREAM = 100_000
"""Entries in the stream above which no more are sent: the workers are away."""
BATCH_SIZE = 1_000
MINUTE, HOUR = 60, 3_600
MICROSECONDS = 1_000_000
MAX_TEXT, MAX_MESSAGE = 200, 500
"""Characters that are kept of a text, and of a message."""


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was answered with an error. See `tenants.refusals.models.RefusedCall`."""

    tenant_id: str
    at: int
    """Unix microseconds."""
    request_id: str
    status: int
    code: str
    message: str
    key_id: str
    project_id: str = ""
    user_id: str = ""
    method: str = ""
    route: str = ""
    path: str = ""
    model: str = ""
    service_tier: str = ""
    generation_id: str = ""


class HourCount(msgspec.Struct, frozen=True):
    """What one process has refused in an hour so far."""

    tenant_id: str
    hour: int
    """The start of the hour in Unix seconds."""
    source: str
    status: int
    code: str
    refused: int
    unlisted: int


class RefusalRecorder:
    """Records the calls that one process refuses. `start` it with the process; `close` it after the last
    request.
    """

    def __init__(self, redis_client: redis.asyncio.Redis) -> None:
        self._stream = StreamProducer(redis_client, STREAM, MAX_IN_STREAM)
        self._source = token_hex(8)
        self._waiting: deque[RefusedRequest] = deque()
        self._minute = 0
        self._num_listed: dict[str, int] = {}
        """In this minute, by tenant."""
        self._counts: dict[_Place, _Count] = {}
        """Of this hour, and of hours that are not sent yet."""
        self._changed: set[_Place] = set()
        self._flusher: asyncio.Task[None] | None = None
        self.num_dropped = 0
        """Calls that were not listed because too many waited to be sent."""

    async def start(self) -> None:
        self._flusher = asyncio.create_task(self._keep_flushing(), name="send refused requests")

    async def close(self) -> None:
        """Sends what is left, if Redis is available."""
        flusher, self._flusher = self._flusher, None
        await cancel(flusher)
        await self.flush()

    def record(self, call: RefusedRequest) -> None:
        """Records a call. It is counted in any case, and listed if there is room."""
        seconds = call.at // MICROSECONDS
        place = (call.tenant_id, seconds // HOUR * HOUR, call.status, call.code)
        count = self._counts.setdefault(place, _Count())
        count.refused += 1
        self._changed.add(place)
        if seconds // MINUTE != self._minute:
            self._minute, self._num_listed = seconds // MINUTE, {}
        num_listed = self._num_listed.get(call.tenant_id, 0)
        if num_listed >= MAX_LISTED_PER_MINUTE:
            count.unlisted += 1
        elif len(self._waiting) >= MAX_WAITING:
            count.unlisted += 1
            self.num_dropped += 1
        else:
            self._num_listed[call.tenant_id] = num_listed + 1
            self._waiting.append(call)

    async def flush(self) -> bool:
        """Sends what waits. Returns False if that must be retried."""
        while self._waiting or self._changed:
            calls = list(islice(self._waiting, BATCH_SIZE))
            places, self._changed = self._changed, set()
            problem = await self._send(calls, places)
            if problem is not None:
                self._changed |= places
                log.warning("refused requests are kept for a retry", reason=str(problem))
                return False
            for _ in calls:
                self._waiting.popleft()
            self._forget_past_hours()
        return True

    async def _send(self, calls: list[RefusedRequest], places: set[_Place]) -> str | None:
        """Returns why it failed, or None."""
        entries = [{"call": msgspec.msgpack.encode(call)} for call in calls]
        if places:
            counts = [self._hour_count(place) for place in places]
            entries.append({"counts": msgspec.msgpack.encode(counts)})
        return await self._stream.add(entries)

    def _hour_count(self, place: _Place) -> HourCount:
        tenant_id, hour, status, code = place
        count = self._counts[place]
        return HourCount(tenant_id, hour, self._source, status, code, count.refused, count.unlisted)

    def _forget_past_hours(self) -> None:
        hour = self._minute * MINUTE // HOUR * HOUR
        past = [place for place in self._counts if place[1] < hour and place not in self._changed]
        for place in past:
            del self._counts[place]

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()


class _Count:
    __slots__ = ("refused", "unlisted")

    def __init__(self) -> None:
        self.refused = 0
        self.unlisted = 0


_Place = tuple[str, int, int, str]
"""(tenant, hour, status, code)."""


def storable(value: Any, limit: int = MAX_TEXT) -> str:
    """Returns text from a client as PostgreSQL and MessagePack can store it, shortened to `limit` characters.
    Anything that is no text is empty.
    """
    if not isinstance(value, str):
        return ""
    shortened = value[:limit].replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return shortened.encode("utf-8", "replace").decode()
