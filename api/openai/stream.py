"""Streams an answer as server-sent events, and aborts it as soon as its client disconnects.

One event per choice and batch of output, comments during silence, then `[DONE]` or an error as the last
event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.errors import ApiError, ClientGone, response_for
from api.openai.answer import Answer, AnswerDelta
from api.openai.response_bodies import DONE as DONE
from api.response_writer import ResponseWriter, do_nothing, response_writer_for
from engine.client import EngineError
from engine.protocol import Usage
from telemetry.metrics import ServingMetrics

PING = b": ping\n\n"

log = structlog.get_logger(__name__)


class AbortOnDisconnect:
    """Aborts the answer if the client disconnects within the block; awaiting it there raises ClientGone."""

    __slots__ = ("_answer", "_writer")

    def __init__(self, writer: ResponseWriter, answer: Answer) -> None:
        self._writer = writer
        self._answer = answer

    def __enter__(self) -> None:
        self._writer.watch(self._gone, do_nothing)

    def __exit__(self, *_: object) -> None:
        self._writer.unwatch()

    def _gone(self) -> None:
        self._answer.fail(ClientGone("The client hung up."))


class EventFormat(Protocol):
    """Encodes one stream's events."""

    def start(self) -> bytes:
        """Returns the events before the first delta."""
        ...

    def chunk(self, delta: AnswerDelta) -> bytes:
        """Returns the events of a delta; empty if there is nothing to send yet."""
        ...

    async def end(self, usage: Usage) -> bytes:
        """Returns the last events of a complete answer."""
        ...

    async def failed(self, error: Exception) -> bytes:
        """Returns the last events of an answer that broke off."""
        ...

    async def left(self) -> None:
        """Is called instead when the client has disconnected."""
        ...


class EventStream(Response):
    """Sends an admitted answer. The last event is `[DONE]` or an error; the response is complete either way.

    Args:
        answer: an admitted answer, whose first output has arrived.
        format: encodes deltas as events.
        ping_interval: seconds of silence before a comment is sent.
        headers: headers in addition to those of a stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        answer: Answer,
        format: EventFormat,
        ping_interval: float,
        metrics: ServingMetrics,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._answer = answer
        self._format = format
        self._ping_interval = ping_interval
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writer = response_writer_for(scope, receive, send)
        self._metrics.open_streams.inc()
        try:
            last = await self._send_events(writer)
        except ClientGone:
            self._answer.left()
            await self._format.left()
            log.info("client left its stream", request=self._answer.submission.id)
            return
        finally:
            self._metrics.open_streams.dec()
        await writer.flushed()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, writer: ResponseWriter) -> bytes:
        """Sends all events except the last, and returns that."""
        answer, chunk_of = self._answer, self._format.chunk
        pings = _Pings(writer, self._ping_interval)
        if first := self._format.start():
            writer.write(first)

        def send(deltas: list[AnswerDelta]) -> bool:
            body = b"".join([chunk_of(delta) for delta in deltas])
            if not body:
                return True
            pings.sent()
            return writer.write(body)

        writer.watch(lambda: answer.fail(ClientGone("The client hung up.")), answer.resume)
        try:
            await answer.read(send)
        except ClientGone:
            raise
        except (EngineError, ApiError) as error:
            answer.outcome.failed(error)
            self._metrics.failed(response_for(error).code)
            log.warning("stream broke off", request=answer.submission.id, error=type(error).__name__)
            return await self._format.failed(error)
        finally:
            pings.stop()  # nothing may follow the last event
            writer.unwatch()
        return await self._format.end(answer.usage)


class _Pings:
    """Sends a comment whenever a stream was silent for an interval: one timer, re-armed when it fires."""

    def __init__(self, writer: ResponseWriter, interval: float) -> None:
        self._writer = writer
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._timer = self._loop.call_later(interval, self._fire)

    def sent(self) -> None:
        self._last_sent = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _fire(self) -> None:
        silent = self._loop.time() - self._last_sent
        if silent >= self._interval:
            self.sent()
            silent = 0.0
            if not self._writer.paused:  # a client that is behind needs no comment
                self._writer.write(PING)
        self._timer = self._loop.call_later(self._interval - silent, self._fire)
