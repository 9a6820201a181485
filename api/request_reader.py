"""Reads HTTP requests from a connection, with limits on the size and time of the request line and headers.

Responds with 431 to headers that are too large, 408 to those that arrive too slowly and 400 to invalid HTTP,
each in the API's error envelope, and closes the connection. Responses to HTTP/1.0 clients, which do not
support chunked encoding, end with the connection. `api.edge` limits bodies per route.
"""

from __future__ import annotations

import asyncio

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from api.errors import (
    ApiError,
    HeadersTooLarge,
    MalformedRequest,
    SlowHeaders,
    body_of,
    headers_of,
    response_for,
)
from api.request_ids import new_request_id

MAX_HEAD_BYTES = 64 * 1024
"""Largest request line with headers, in bytes; also of trailers."""
HEAD_TIMEOUT = 20.0
"""Seconds, by default, in which a request line and headers must arrive."""
LINGER = 2.0
"""Seconds that a client has to read why it was refused. What it sends meanwhile is dropped: closing at once
would make its system discard the response.
"""

log = structlog.get_logger(__name__)


class DrainingState(ServerState):
    """What the connections of a process share."""

    is_draining = False


class RequestReader(HttpToolsProtocol):
    """The receiving half of a connection."""

    head_timeout = HEAD_TIMEOUT
    idle_grace = 0.0
    """Seconds that an idle connection has for another request when the process drains."""
    _num_pending = 0
    """Bytes received since a head or a part of a body was complete. The parser may hold all of them."""
    _deadline: asyncio.TimerHandle | None = None
    """Set while no request is in progress and one should arrive."""
    _is_refused = False
    _is_draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.head_timeout, self._time_out)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if len(data) <= MAX_HEAD_BYTES - self._num_pending:
            self._num_pending += len(data)
            super().data_received(data)
        else:
            self._receive_in_parts(data)
        if self._deadline is None and self._is_idle:
            # The next head has begun, or the rest of a refused body, which may take longer.
            seconds = self.head_timeout if self._num_pending else self.timeout_keep_alive
            self._deadline = self.loop.call_later(seconds, self._time_out)

    def _receive_in_parts(self, data: bytes) -> None:
        """Feeds the parser at most what the limit leaves, so that it holds no more of an unfinished head."""
        while data and not self._is_refused:
            room = MAX_HEAD_BYTES - self._num_pending
            if not room:
                limit = f"{MAX_HEAD_BYTES // 1024} kB"
                self._refuse(
                    HeadersTooLarge(
                        f"The request line and headers are larger than {limit}; send smaller headers."
                    )
                )
                return
            self._num_pending += min(room, len(data))
            part, data = data[:room], data[room:]
            super().data_received(part)

    def on_headers_complete(self) -> None:
        self._num_pending = 0
        self._stop_deadline()
        super().on_headers_complete()
        if self._is_draining or self._process_drains:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._num_pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_pending = 0
        super().on_message_complete()

    def shutdown(self) -> None:
        """Ends the connection after the request that it has or that is on its way. A client may be sending
        one on an idle connection just now: it is answered, and told that the connection ends.
        """
        self._is_draining = True
        if self._is_idle:
            self.loop.call_later(self.idle_grace, self._close_if_idle)
        elif self.cycle is not None:
            self.cycle.keep_alive = False

    def _close_if_idle(self) -> None:
        if self._is_idle and not self._num_pending:
            self.transport.close()

    @property
    def _process_drains(self) -> bool:
        """Also before this connection learns of it, when it was accepted in between."""
        return isinstance(self.server_state, DrainingState) and self.server_state.is_draining

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress; the head of one may have begun to arrive."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that the parser cannot read."""
        self._refuse(MalformedRequest("The request is not valid HTTP/1.1; check its syntax and framing."))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        if cycle.scope["http_version"] == "1.0":
            app = UnchunkedResponse(cycle, app)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _time_out(self) -> None:
        self._deadline = None
        if self._num_pending:
            seconds = f"{self.head_timeout:g} s"
            self._refuse(SlowHeaders(f"The request line and headers did not arrive within {seconds}."))
        else:
            self.transport.close()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, error: ApiError) -> None:
        """Stops reading. Responds with `error`, unless an earlier response is due or in progress, which the
        error must not be mixed into.
        """
        self._is_refused = True
        self._stop_deadline()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # complete requests are answered, then the connection closes
                cycle.keep_alive = False
                return
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self._answer(error)

    def _answer(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        response, body, request_id = response_for(error), body_of(error), new_request_id()
        headers = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        headers += [
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % header for header in [*self.server_state.default_headers, *headers]]
        self.transport.write(b"".join([STATUS_LINE[response.status], *lines, b"\r\n", body]))
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER, self.transport.abort)
        log.info(
            "request refused",
            request_id=request_id.decode(),
            status=response.status,
            reason=str(error),
            client=self.client and self.client[0],
        )


class UnchunkedResponse:
    """Wraps the application for one HTTP/1.0 request: a body without a length ends with the connection.

    Args:
        cycle: sends the response; closes the connection after a response to HTTP/1.0.
        app: produces the response.
    """

    def __init__(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        self._cycle = cycle
        self._app = app
        self._is_until_close = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {}  # the connection's own response writer always uses chunked encoding
        await self._app(scope, receive, self._send)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_until_close = b"content-length" not in names
            if self._is_until_close:
                self._cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and self._is_until_close:
            # The server compares each part of the body with this length.
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._cycle.send(message)  # type: ignore[arg-type]
