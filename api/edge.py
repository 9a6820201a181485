"""The edge of every HTTP request: its id, its limits, its line in the log, its counters.

Owns the outermost pure ASGI layer. Nothing larger than the limit is read, nothing slower than the limit is
waited for, and no exception gets past it without the one error envelope. Refuses to know routes, keys and
models.
"""

from __future__ import annotations

import asyncio
import re
import time
import types
from collections.abc import Awaitable, Callable, Generator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    face_of,
    headers_of,
)
from api.request_ids import request_id
from telemetry.metrics import ServingMetrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_QUIET = frozenset({"/livez", "/readyz", "/health", "/metrics"})
HANG_UP_BEYOND = 64 * 1024 * 1024
"""When a body is refused and more of it than this is to come, it is not drained: the connection is closed."""

log = structlog.get_logger("api.access")


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """What is read of a body."""

    max_bytes: int
    """Larger ones get 413, by Content-Length before a byte is read, else by counting."""
    timeout: float
    """Seconds for the whole body to arrive, else 408."""
    min_rate: float = 0.0
    """Bytes per second. When given, `timeout` is how long nothing may come, and what the body may be behind
    this rate. Only time spent waiting for the client counts.
    """


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Of each route."""

    default: BodyLimit
    special: Sequence[tuple[str, re.Pattern[str], BodyLimit]] = ()
    """Method and whole path, the first that fits."""

    def of(self, scope: Scope) -> BodyLimit:
        for method, path, limit in self.special:
            if scope["method"] == method and path.fullmatch(scope["path"]):
                return limit
        return self.default


class Edge:
    """Wraps an ASGI application.

    Args:
        app: what serves the request.
        metrics: where requests are counted.
        limits: of bodies.
        deferred_work: does what is done of a request that has been answered.
    """

    def __init__(
        self,
        app: AsgiApp,
        metrics: ServingMetrics,
        limits: BodyLimits,
        deferred_work: DeferredWork | None = None,
    ) -> None:
        self._app = app
        self._deferred_work = deferred_work or DeferredWork()
        self._metrics = metrics
        self._limits = limits
        self._log = log.bind()  # once: a logger that is not bound is made anew for every line

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
        declared = int(headers.get(b"content-length", b"0"))  # the server has refused one that is no number
        if declared or b"transfer-encoding" in headers:
            limit = self._limits.of(scope)
            body = _BoundedBody(receive, limit, declared)
            exchange.body = receive = body
            refused = refused or _unreadable(headers, declared, limit)
        if refused is not None:
            self._metrics.failed(face_of(refused).code)
            await exchange.refuse(refused)
            return
        try:
            await self._app(scope, receive, exchange.send)
        except Exception as error:
            log.error("request failed", path=scope["path"], error=type(error).__name__, exc_info=error)
            if exchange.status is None:
                self._metrics.failed(face_of(error).code)
                await exchange.refuse(error)
            elif not exchange.complete:
                raise  # The status is out: all that is left is to break the connection off.

    def _account(self, scope: Scope, state: dict[str, Any], exchange: _Exchange, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        status = exchange.status or 499
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.http(method, route, status, seconds)
        write = self._log.debug if scope["path"] in _QUIET else self._log.info
        write(
            "request",
            request_id=state["request_id"],
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1e3, 2),
            **state.get("log", {}),
        )


class _Exchange:
    """One request's answer as it goes out: stamps the id on it and remembers what was sent."""

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
        """Answer with the error's envelope."""
        body = body_of(error)
        headers = [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": face_of(error).status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class _BoundedBody:
    """`receive`, as long as the body is neither too long nor too late."""

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
        """The rest comes too slowly, or is so large that reading past it makes no sense. Without a declared
        length its size is unknown.
        """
        return self._is_late or (not self._done and self._declared - self._received > HANG_UP_BEYOND)

    async def __call__(self) -> Message:
        if self._done:
            return await self._receive()
        receiving = self._receive().__await__()
        try:
            waits_for = next(receiving)
        except StopIteration as at_once:  # most bodies come with their head: no clock is set for them
            message = at_once.value
        else:
            message = await self._wait(receiving, waits_for)
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit.max_bytes:
                raise _too_large(self._limit.max_bytes)
            self._done = not message.get("more_body", False)
        return message

    async def _wait(self, receiving: Generator[Any, Any, Message], waits_for: Any) -> Message:
        """Raises SlowBody."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience()):
                message = await _go_on(receiving, waits_for)
        except TimeoutError:
            self._is_late = True
            raise SlowBody("The request's body did not arrive in time.") from None
        self._waited += time.perf_counter() - began
        return message

    def _patience(self) -> float:
        """Seconds that the next piece may take."""
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
def _go_on(begun: Generator[Any, Any, Message], waits_for: Any) -> Generator[Any, Any, Message]:
    """Await what was begun already, and waits for something."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001  it is the awaited one's
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(sent)
    except StopIteration as end:
        message: Message = end.value
        return message


def _unreadable(headers: dict[bytes, bytes], declared: int, limit: BodyLimit) -> ApiError | None:
    """Why the body is not read at all, if so."""
    if declared > limit.max_bytes:
        return _too_large(limit.max_bytes)
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.strip().lower() in ("identity", ""):
        return None
    return UnsupportedEncoding(
        f"Content-Encoding '{encoding[:100]}' is not supported; send the body as it is."
    )


def _repeated_host(headers: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """Two servers may take two Host headers for different hosts."""
    if sum(name == b"host" for name, _ in headers) > 1:
        return MalformedRequest("The request has more than one Host header; send one.")
    return None


def _too_large(limit: int) -> ApiError:
    return BodyTooLarge(f"The request's body is larger than {limit} bytes.")
