"""Wraps every HTTP request with a request id, body limits, an access log line and metrics.

The outermost ASGI middleware. Bodies that are too large or too slow are refused, and every exception becomes
the error envelope.
"""

from __future__ import annotations

import asyncio
import re
import time
import types
from collections.abc import Awaitable, Callable, Generator, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from starlette.requests import Request

from api.cors import response_headers
from api.deferred_work import DeferredWork
from api.errors import (
    ApiError,
    BodyTooLarge,
    MalformedRequest,
    SlowBody,
    UnsupportedEncoding,
    body_of,
    headers_of,
    response_for,
)
from api.request_ids import request_id
from api.request_trace import RequestTrace, begin_request, http_attributes
from telemetry.metrics import ServingMetrics
from telemetry.trace_context import in_trace

if TYPE_CHECKING:
    from telemetry.tracing import Tracing

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
OnError = Callable[[Scope, Exception], None]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_QUIET = frozenset({"/livez", "/readyz", "/health", "/metrics"})
HANG_UP_BEYOND = 64 * 1024 * 1024
"""Bytes of a refused body above which the rest is not read: the connection is closed instead."""

log = structlog.get_logger("api.access")


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limits on the size and time of a body."""

    max_bytes: int
    """Larger bodies get 413: before a byte is read if Content-Length is sent, else by counting."""
    timeout: float
    """Seconds for the whole body to arrive, else 408."""
    min_rate: float = 0.0
    """Bytes per second. If set, `timeout` bounds the silence between parts, and how far the body can fall
    behind this rate. Only time spent waiting for the client counts.
    """


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Body limits of each route."""

    default: BodyLimit
    special: Sequence[tuple[str, re.Pattern[str], BodyLimit]] = ()
    """Method, full path and limit; the first match applies."""

    def of(self, scope: Scope) -> BodyLimit:
        for method, path, limit in self.special:
            if scope["method"] == method and path.fullmatch(scope["path"]):
                return limit
        return self.default


class Edge:
    """Wraps an ASGI application.

    Args:
        app: serves the request.
        metrics: counts requests.
        limits: limits of bodies.
        deferred_work: logs and counts requests after their response.
        on_error: called with an error that is answered here instead of by the application.
        tracing: records spans of sampled requests; None records nothing.
    """

    def __init__(
        self,
        app: AsgiApp,
        metrics: ServingMetrics,
        limits: BodyLimits,
        deferred_work: DeferredWork | None = None,
        on_error: OnError | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._tracing = tracing
        self._deferred_work = deferred_work or DeferredWork()
        self._metrics = metrics
        self._limits = limits
        self._on_error = on_error
        self._log = log.bind()  # bound once: an unbound logger is constructed for every line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        state = scope.setdefault("state", {})
        exchange = _Exchange(send, request_id(headers.get(b"x-request-id")), state)
        state["request_id"] = exchange.request_id.decode()
        state["arrived"] = exchange.started
        state["headers"] = headers
        structlog.contextvars.bind_contextvars(request_id=state["request_id"])
        trace = None
        if self._tracing is not None and scope["path"] not in _QUIET:
            trace = begin_request(self._tracing, scope["method"], headers, exchange.started)
        if trace is not None:
            state["trace"] = trace
        with nullcontext() if trace is None else in_trace(trace.context):
            try:
                await self._serve(scope, headers, receive, exchange)
            finally:
                self._deferred_work.add(
                    self._account, scope, state, exchange, time.perf_counter() - exchange.started
                )

    async def _serve(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, exchange: _Exchange
    ) -> None:
        refused: ApiError | None = None
        if len(headers) != len(scope["headers"]):
            refused = _repeated_host(scope["headers"])
            exchange.closes = refused is not None
        declared = int(headers.get(b"content-length", b"0"))  # the server has refused non-numeric values
        if declared or b"transfer-encoding" in headers:
            limit = self._limits.of(scope)
            body = _BoundedBody(receive, limit, declared)
            exchange.body = receive = body
            refused = refused or _unreadable(headers, declared, limit)
        if refused is not None:
            await self._refuse(scope, exchange, refused)
            return
        try:
            await self._app(scope, receive, exchange.send)
        except Exception as error:
            log.error("request failed", path=scope["path"], error=type(error).__name__, exc_info=error)
            if exchange.status is None:
                await self._refuse(scope, exchange, error)
                return
            if exchange.status >= 500:  # the console has answered its own error, with a page
                self._metrics.failed(response_for(error).code)
            if not exchange.complete:
                raise  # the status has been sent, so the connection is closed

    async def _refuse(self, scope: Scope, exchange: _Exchange, error: Exception) -> None:
        self._metrics.failed(response_for(error).code)
        if self._on_error is not None:
            self._on_error(scope, error)
        await exchange.refuse(error)

    def _account(self, scope: Scope, state: dict[str, Any], exchange: _Exchange, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        status = exchange.status or 499
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.http(method, route, status, seconds)
        trace: RequestTrace | None = state.get("trace")
        if trace is not None:
            attributes = http_attributes(method, route, state)
            trace.finish(f"{method} {route}", exchange.started + seconds, status, attributes)
        write = self._log.debug if scope["path"] in _QUIET else self._log.info
        write(
            "request",
            request_id=state["request_id"],
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1e3, 2),
            **state.get("log", {}),
            **({} if trace is None else trace.context.log_fields),
        )


class _Exchange:
    """Sends one request's response: adds the request id, and keeps track of what was sent."""

    __slots__ = ("_send", "_state", "body", "closes", "complete", "request_id", "started", "status")

    def __init__(self, send: Send, request_id: bytes, state: dict[str, Any]) -> None:
        self._send = send
        self._state = state
        self.request_id = request_id
        self.started = time.perf_counter()
        self.status: int | None = None
        self.complete = False
        self.body: _BoundedBody | None = None
        self.closes = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id)]
            if self.closes or (self.body is not None and self.body.is_far_from_over):
                headers.append((b"connection", b"close"))
            origin: str | None = self._state.get("allowed_origin")
            if origin is not None:
                headers += response_headers(origin.encode())
            message["headers"] = headers
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, error: Exception) -> None:
        """Sends the error's envelope as the response."""
        body = body_of(error)
        headers = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send(
            {"type": "http.response.start", "status": response_for(error).status, "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": body})


class _BoundedBody:
    """Wraps `receive`, and raises if the body is too large or too slow."""

    __slots__ = ("_declared", "_done", "_is_late", "_limit", "_receive", "_received", "_waited")

    def __init__(self, receive: Receive, limit: BodyLimit, declared: int) -> None:
        self._receive = receive
        self._limit = limit
        self._declared = declared
        self._received = 0
        self._waited = 0.0
        self._done = False
        self._is_late = False

    @property
    def is_far_from_over(self) -> bool:
        """Whether the rest arrives too slowly or is too large to be read. Without a declared length its size
        is unknown.
        """
        return self._is_late or (not self._done and self._declared - self._received > HANG_UP_BEYOND)

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()
        receiving = self._receive().__await__()
        try:
            awaited = next(receiving)
        except StopIteration as at_once:  # most bodies arrive with their head and need no timeout
            message = at_once.value
        else:
            message = await self._wait(receiving, awaited)
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit.max_bytes:
                raise _too_large(self._limit.max_bytes)
            self._done = not message.get("more_body", False)
        return message

    async def _wait(self, receiving: Generator[Any, Any, Message], awaited: Any) -> Message:
        """Waits for the next message. Raises SlowBody."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience()):
                message = await _resume_receiving(receiving, awaited)
        except TimeoutError:
            self._is_late = True
            raise SlowBody("The request's body did not arrive in time.") from None
        self._waited += time.perf_counter() - began
        return message

    def _patience(self) -> float:
        """Returns the seconds that the next message may take."""
        limit = self._limit
        left = limit.timeout - self._waited
        if limit.min_rate:
            left = min(left + self._received / limit.min_rate, limit.timeout)
        return max(0.0, left)


def header_of(request: Request, name: bytes, default: str = "") -> str:
    """Returns a request header's value, the last where it came twice. `name` is in lower case.

    The edge keeps headers in a dict; the framework searches the list of all of them at each look-up.
    """
    value: bytes | None = request.scope["state"]["headers"].get(name)
    return default if value is None else value.decode("latin-1")


@types.coroutine
def _resume_receiving(receiving: Generator[Any, Any, Message], awaited: Any) -> Generator[Any, Any, Message]:
    """Continues a coroutine that has been started and waits for `awaited`."""
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001  passed on to the coroutine
                awaited = receiving.throw(error)
            else:
                awaited = receiving.send(sent)
    except StopIteration as end:
        message: Message = end.value
        return message


def _unreadable(headers: dict[bytes, bytes], declared: int, limit: BodyLimit) -> ApiError | None:
    """Returns the error of a body that is not read at all, or None."""
    if declared > limit.max_bytes:
        return _too_large(limit.max_bytes)
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.strip().lower() in ("identity", ""):
        return None
    return UnsupportedEncoding(
        f"Content-Encoding '{encoding[:100]}' is not supported; send the body as it is."
    )


def _repeated_host(headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """Returns an error if Host is repeated: proxies and servers may pick different ones."""
    if sum(name == b"host" for name, _ in headers) > 1:
        return MalformedRequest("The request has more than one Host header; send one.")
    return None


def _too_large(limit: int) -> ApiError:
    return BodyTooLarge(f"The request's body is larger than {limit} bytes.")
