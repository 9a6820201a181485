"""An answer as server-sent events, and the end of a request whose client has left.

Owns the sending: one event per choice and wakeup, comments while nothing comes, an error as the last event,
`[DONE]`. Owns watching the connection, too: a generation nobody reads is aborted at once. Refuses to know
what an event says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.errors import ApiError, ClientGone, body_of, face_of
from api.openai.answer import Answer
from api.openai.bodies import ChunkFormat
from engine.client import EngineError
from telemetry.metrics import ServingMetrics

T = TypeVar("T")

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

log = structlog.get_logger(__name__)


class ClientWatch:
    """Listens for the client hanging up while its request is being answered.

    `async with ClientWatch(receive, on_gone)`: at the hang-up `on_gone` is called and the block is cancelled;
    what comes out of the block then is ClientGone. The body must have been read.
    """

    def __init__(self, receive: Receive, on_gone: Callable[[], None]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._gone = False
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ClientWatch:
        reading = asyncio.current_task()
        assert reading is not None
        self._reader = asyncio.create_task(self._listen(reading))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        assert self._reader is not None
        self._reader.cancel()
        if self._gone:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            raise ClientGone("The client hung up.") from None

    async def _listen(self, reading: asyncio.Task[object]) -> None:
        message: Message = {"type": "http.request"}
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._gone = True
        self._on_gone()
        reading.cancel()


async def while_connected(receive: Receive, on_gone: Callable[[], None], work: Awaitable[T]) -> T:
    """Await `work` as long as the client is there. Raises ClientGone when it leaves first."""
    async with ClientWatch(receive, on_gone):
        return await work


class EventStream(Response):
    """Sends an admitted answer. The last event is `[DONE]`, or an error; either way the response ends in
    order.

    Args:
        answer: admitted: its first output is there.
        format: how pieces become events.
        include_usage: send one more event with the usage.
        ping_interval: seconds of silence before a comment is sent.
        headers: beside those of a stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        answer: Answer,
        format: ChunkFormat,
        include_usage: bool,
        ping_interval: float,
        metrics: ServingMetrics,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._answer = answer
        self._format = format
        self._include_usage = include_usage
        self._ping_interval = ping_interval
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pings = _Pings(send, self._ping_interval)
        self._metrics.open_streams.inc()
        try:
            async with ClientWatch(receive, self._answer.abort):
                await self._send_events(send, pings)
        except ClientGone:
            self._answer.left()
            log.info("client left its stream", request=self._answer.submission.id)
        except asyncio.CancelledError:
            self._answer.abort()
            raise
        finally:
            pings.stop()
            self._metrics.open_streams.dec()

    async def _send_events(self, send: Send, pings: _Pings) -> None:
        chunk_of = self._format.chunk
        try:
            async with contextlib.aclosing(self._answer.pieces()) as source:
                async for pieces in source:
                    body = b"".join([chunk_of(piece) for piece in pieces])
                    if body:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                        pings.sent()
            last = self._format.usage(self._answer.usage) + DONE if self._include_usage else DONE
        except (EngineError, ApiError) as error:
            self._answer.observation.failed(error)
            self._metrics.failed(face_of(error).code)
            log.warning("stream broke off", request=self._answer.submission.id, error=type(error).__name__)
            last = b"data: " + body_of(error) + b"\n\n"
        pings.stop()  # nothing may follow the last event
        await send({"type": "http.response.body", "body": last, "more_body": False})


class _Pings:
    """Sends a comment whenever a stream was silent for an interval: one timer, re-armed when it fires."""

    def __init__(self, send: Send, interval: float) -> None:
        self._send = send
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._ping: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(interval, self._fire)

    def sent(self) -> None:
        self._last_sent = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    def _fire(self) -> None:
        silent = self._loop.time() - self._last_sent
        if silent >= self._interval:
            self.sent()
            silent = 0.0
            # A client that reads nothing leaves the last ping unsent: one is enough.
            if self._ping is None or self._ping.done():
                self._ping = asyncio.create_task(self._comment())
        self._timer = self._loop.call_later(self._interval - silent, self._fire)

    async def _comment(self) -> None:
        await self._send({"type": "http.response.body", "body": PING, "more_body": True})
