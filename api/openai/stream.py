"""An answer as server-sent events, and the end of a request whose client has left.

Owns the sending: one event per choice and wakeup, comments while nothing comes, an error as the last event,
`[DONE]`. A generation nobody reads any more is aborted at once. Refuses to know what an event says, and how
bytes leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.errors import ApiError, ClientGone, body_of, face_of
from api.openai.answer import Answer, AnswerDelta
from api.openai.bodies import ChunkFormat
from api.response_writer import ResponseWriter, nothing, response_writer_for
from engine.client import EngineError
from telemetry.metrics import ServingMetrics

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

log = structlog.get_logger(__name__)


class WhileConnected:
    """When the client hangs up within the block, the answer is aborted, and who awaits it there is told with
    ClientGone.
    """

    __slots__ = ("_answer", "_outlet")

    def __init__(self, outlet: ResponseWriter, answer: Answer) -> None:
        self._outlet = outlet
        self._answer = answer

    def __enter__(self) -> None:
        self._outlet.watch(self._gone, nothing)

    def __exit__(self, *_: object) -> None:
        self._outlet.unwatch()

    def _gone(self) -> None:
        self._answer.break_off(ClientGone("The client hung up."))


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
        outlet = response_writer_for(scope, receive, send)
        self._metrics.open_streams.inc()
        try:
            last = await self._send_events(outlet)
        except ClientGone:
            self._answer.left()
            log.info("client left its stream", request=self._answer.submission.id)
            return
        finally:
            self._metrics.open_streams.dec()
        await outlet.flushed()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, outlet: ResponseWriter) -> bytes:
        """All but the last, which is returned."""
        answer, chunk_of = self._answer, self._format.chunk
        pings = _Pings(outlet, self._ping_interval)

        def send(pieces: list[AnswerDelta]) -> bool:
            body = b"".join([chunk_of(piece) for piece in pieces])
            if not body:
                return True
            pings.sent()
            return outlet.write(body)

        outlet.watch(lambda: answer.break_off(ClientGone("The client hung up.")), answer.go_on)
        try:
            await answer.read(send)
        except ClientGone:
            raise
        except (EngineError, ApiError) as error:
            answer.observation.failed(error)
            self._metrics.failed(face_of(error).code)
            log.warning("stream broke off", request=answer.submission.id, error=type(error).__name__)
            return b"data: " + body_of(error) + b"\n\n"
        finally:
            pings.stop()  # nothing may follow the last event
            outlet.unwatch()
        return self._format.usage(answer.usage) + DONE if self._include_usage else DONE


class _Pings:
    """Sends a comment whenever a stream was silent for an interval: one timer, re-armed when it fires."""

    def __init__(self, outlet: ResponseWriter, interval: float) -> None:
        self._outlet = outlet
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
            if not self._outlet.paused:  # who does not read has enough to read
                self._outlet.write(PING)
        self._timer = self._loop.call_later(self._interval - silent, self._fire)
