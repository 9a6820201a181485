"""Streams an answer as server-sent events, and aborts it as soon as its client disconnects.

One event per choice and batch of output, comments during silence, then `[DONE]` or an error as the last
event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.errors import ApiError, ClientGone, body_of, response_for
from api.openai.answer import Answer, AnswerDelta
from api.openai.response_bodies import ChunkFormat
from api.response_writer import ResponseWriter, do_nothing, response_writer_for
from engine.client import EngineError
from telemetry.metrics import ServingMetrics

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

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


class EventStream(Response):
    """Sends an admitted answer. The last event is `[DONE]` or an error; the response is complete either way.

    Args:
        answer: an admitted answer, whose first output has arrived.
        format: encodes deltas as events.
        include_usage: send one more event with the usage.
        ping_interval: seconds of silence before a comment is sent.
        headers: headers in addition to those of a stream.
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
        writer = response_writer_for(scope, receive, send)
        self._metrics.open_streams.inc()
        try:
            last = await self._send_events(writer)
        except ClientGone:
            self._answer.left()
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
            return b"data: " + body_of(error) + b"\n\n"
        finally:
            pings.stop()  # nothing may follow the last event
            writer.unwatch()
        return self._format.usage(answer.usage) + DONE if self._include_usage else DONE


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
