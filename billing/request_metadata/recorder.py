"""Sends the metadata of one process's requests to a Redis stream, from which workers store it.

A request with metadata waits until Redis has it, so that it survives a process that is killed, as the
request's usage does. A request without any never comes here. While Redis is unavailable requests do not wait:
entries are held in memory, within bounds, and sent when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import islice

import msgspec
import redis.asyncio
import structlog

from billing.request_metadata.content import MetadataSealer, RequestMetadata
from db.stream import StreamProducer
from telemetry.tasks import cancel

log = structlog.get_logger(__name__)

STREAM = "rootstock:request-metadata"
"""The Redis stream. An entry's field `row` is a `MetadataEntry` in MessagePack."""
MAX_IN_STREAM = 50_000
"""Entries in the stream above which no more are sent: the workers are away."""
MAX_HELD_BYTES = 16 * 1024 * 1024
"""Of entries held in memory while they cannot be sent; more are dropped, and counted."""
BATCH_SIZE = 500
LONGEST_WAIT = 0.25
"""Seconds for which a request waits for Redis."""
RETRY_SECONDS = 1.0


class MetadataEntry(msgspec.Struct, frozen=True):
    """The encrypted metadata of a request."""

    tenant_id: str
    request_id: str
    sealed: bytes


class _Waiting:
    __slots__ = ("encoded", "sent")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self.sent = asyncio.Event()


class MetadataRecorder:
    """Records the metadata of the requests of one process. `start` it with the process; `close` it after the
    last request.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, sealer: MetadataSealer) -> None:
        self._stream = StreamProducer(redis_client, STREAM, MAX_IN_STREAM)
        self._sealer = sealer
        self._waiting: deque[_Waiting] = deque()
        self._held_bytes = 0
        self._is_away = False
        self._wake = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self.num_dropped = 0
        """Requests whose metadata is lost because too much waited to be sent."""

    async def start(self) -> None:
        self._sender = asyncio.create_task(self._keep_sending(), name="send metadata of requests")

    async def close(self) -> None:
        """Sends what is left, if Redis is available."""
        sender, self._sender = self._sender, None
        await cancel(sender)
        while self._waiting and await self._send():
            pass

    async def keep(self, content: RequestMetadata, tenant_id: str, request_id: str) -> None:
        """Returns when Redis has the metadata, or when waiting for that makes no sense. Never fails."""
        sealed = self._sealer.seal(content, tenant_id, request_id)
        entry = _Waiting(msgspec.msgpack.encode(MetadataEntry(tenant_id, request_id, sealed)))
        if self._held_bytes + len(entry.encoded) > MAX_HELD_BYTES:
            self.num_dropped += 1
            if self.num_dropped.bit_count() == 1:  # the first, and each time their number has doubled
                log.error("metadata of requests is dropped: Redis does not take it", total=self.num_dropped)
            return
        self._held_bytes += len(entry.encoded)
        self._waiting.append(entry)
        self._wake.set()
        if not self._is_away:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT):
                    await entry.sent.wait()

    async def _keep_sending(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if not await self._send():
                    await asyncio.sleep(RETRY_SECONDS)

    async def _send(self) -> bool:
        """Sends a batch of what waits. Returns False if that must be retried: the batch is then sent again as
        a whole, and stored once (`billing.request_metadata.intake`).
        """
        batch = list(islice(self._waiting, BATCH_SIZE))
        problem = await self._stream.add({"row": entry.encoded} for entry in batch)
        self._is_away = problem is not None
        if problem is not None:
            log.warning("metadata of requests is held for a retry", reason=problem, held=len(self._waiting))
            for entry in self._waiting:
                entry.sent.set()  # as good as it gets
            return False
        for entry in batch:
            self._waiting.popleft()
            self._held_bytes -= len(entry.encoded)
            entry.sent.set()
        return True
