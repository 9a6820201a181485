"""The edge of every HTTP request: its id, its limits, its line in the log, its counters.

Owns the outermost pure ASGI layer. Nothing larger than the limit is read, nothing slower than the limit is
waited for, and no exception gets past it without the one error envelope. Refuses to know routes, keys and
models.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from secrets import token_hex
from typing import Any

import structlog

from api.errors import ApiError, BodyTooLarge, SlowBody, body_of, face_of, headers_of
from telemetry.metrics import ServingMetrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_SANE_ID = re.compile(rb"[A-Za-z0-9_.\-]{8,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_QUIET = frozenset({"/livez", "/readyz", "/metrics"})
HANG_UP_BEYOND = 64 * 1024 * 1024
"""A declared body of more than this is not even drained: the connection is closed."""

log = structlog.get_logger("api.access")


class Edge:
    """Wraps an ASGI application.

    Args:
        app: what serves the request.
        metrics: where requests are counted.
        max_body_bytes: larger bodies get 413, by Content-Length before a byte is read, else by counting.
        body_timeout: seconds for the whole body to arrive, else 408.
    """

    def __init__(
        self, app: AsgiApp, metrics: ServingMetrics, max_body_bytes: int, body_timeout: float
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._body_timeout = body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        exchange = _Exchange(send, _request_id(headers.get(b"x-request-id")))
        state = scope.setdefault("state", {})
        state["request_id"] = exchange.request_id.decode()
        state["arrived"] = exchange.started
        structlog.contextvars.bind_contextvars(request_id=state["request_id"])
        try:
            await self._serve(scope, headers, receive, exchange)
        finally:
            self._account(scope, state, exchange)

    async def _serve(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, exchange: _Exchange
    ) -> None:
        declared = int(headers.get(b"content-length", b"0"))  # the server has refused one that is no number
        if declared > self._max_body_bytes:
            error = _too_large(self._max_body_bytes)
            self._metrics.failed(face_of(error).code)
            await exchange.refuse(error, hang_up=declared > HANG_UP_BEYOND)
            return
        if declared or b"transfer-encoding" in headers:
            receive = _BoundedBody(receive, self._max_body_bytes, self._body_timeout)
        try:
            await self._app(scope, receive, exchange.send)
        except Exception as error:
            log.error("request failed", path=scope["path"], error=type(error).__name__, exc_info=error)
            if exchange.status is None:
                await exchange.refuse(error)
            elif not exchange.complete:
                raise  # The status is out: all that is left is to break the connection off.

    def _account(self, scope: Scope, state: dict[str, Any], exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        route = getattr(scope.get("route"), "path", "unmatched")
        status = exchange.status or 499
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http(method, route, status, seconds)
        write = log.debug if scope["path"] in _QUIET else log.info
        write(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1e3, 2),
            **state.get("log", {}),
        )


class _Exchange:
    """One request's answer as it goes out: stamps the id on it and remembers what was sent."""

    __slots__ = ("_send", "complete", "request_id", "started", "status")

    def __init__(self, send: Send, request_id: bytes) -> None:
        self._send = send
        self.request_id = request_id
        self.started = time.perf_counter()
        self.status: int | None = None
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id)]
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, error: Exception, hang_up: bool = False) -> None:
        """Answer with the error's envelope."""
        body = body_of(error)
        headers = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        headers.append((b"content-length", str(len(body)).encode()))
        if hang_up:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": face_of(error).status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class _BoundedBody:
    """`receive`, as long as the body is neither too long nor too late."""

    __slots__ = ("_deadline", "_done", "_left", "_limit", "_receive")

    def __init__(self, receive: Receive, limit: int, timeout: float) -> None:
        self._receive = receive
        self._limit = limit
        self._left = limit
        self._deadline = asyncio.get_running_loop().time() + timeout
        self._done = False

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise SlowBody("The request's body did not arrive in time.") from None
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise _too_large(self._limit)
            self._done = not message.get("more_body", False)
        return message


def _request_id(offered: bytes | None) -> bytes:
    """The caller's own id where it is harmless in a log and a header, else a fresh one."""
    if offered is not None and _SANE_ID.fullmatch(offered):
        return offered
    return b"req_" + token_hex(12).encode()


def _too_large(limit: int) -> ApiError:
    return BodyTooLarge(f"The request's body is larger than {limit} bytes.")
