"""Implements idempotency keys: a POST repeated with the same `Idempotency-Key` runs once.

ASGI middleware inside the edge. A repeated request gets the first response; requests without the header pass
unchanged. Stored responses are encrypted under the API key and the idempotency key, so Redis alone reveals no
content.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from api.authentication import bearer_of, identify
from api.edge import AsgiApp, Message, Receive, Scope, Send
from api.errors import (
    ERROR_RESPONSES,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    IdempotencyNotReplayable,
    InvalidValue,
)
from api.openai.stream import DONE
from api.response_writer import EXTENSION
from tenants.idempotency.records import Claim, IdempotencyRecords, RecordsUnavailable, Stored
from tenants.identities.sealing import Sealer

HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
MAX_KEPT = 1024 * 1024
"""Largest response, in bytes, that is stored for replay."""
_KEY = re.compile(rb"[!-~]{1,255}")
_BOUNDARY = re.compile(rb'boundary="?([^";,\s]{1,70})', re.IGNORECASE)
_NOT_KEPT = (b"content-length", b"x-ratelimit-", b"x-rootstock-quota")
_KNOWN = tuple(ERROR_RESPONSES)

Show = Callable[[Request, Exception], Awaitable[Response]]
log = structlog.get_logger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """A response as it is stored."""

    fingerprint: bytes
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    """None if longer than `MAX_KEPT`."""


class Idempotency:
    """Wraps an ASGI application.

    Args:
        app: processes the requests.
        framework: `request.app` of requests whose errors are returned here.
        records: None in a process without records, which refuses requests with an idempotency key.
        show: returns the response to an error.
    """

    def __init__(
        self, app: AsgiApp, framework: AsgiApp, records: IdempotencyRecords | None, show: Show
    ) -> None:
        self._app = app
        self._framework = framework
        self._records = records
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = scope["state"]["headers"].get(HEADER) if scope["type"] == "http" else None
        if given is None or scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        scope["app"] = self._framework
        request = Request(scope, receive, send)
        try:
            caller = await identify(request)
        except _KNOWN:
            await self._app(scope, receive, send)  # which returns the same error
            return
        try:
            if _KEY.fullmatch(given) is None:
                raise InvalidValue(
                    "Idempotency-Key must be 1 to 255 printable characters.", "Idempotency-Key"
                )
            if self._records is None:
                raise RecordsUnavailable("this process has no idempotency records")
            bearer = bearer_of(request)
            sealer = Sealer(bearer, f"idempotency {given.decode()}")
            record_id = hashlib.sha256(bearer.encode() + b"\0" + given).hexdigest()
            found = await self._records.claim(caller.tenant_id, record_id)
            if found is None:
                raise IdempotencyInProgress(
                    "A request with this Idempotency-Key is still in progress; retry in a moment."
                )
            if isinstance(found, Stored):
                answer = msgspec.msgpack.decode(sealer.open(found.response, record_id), type=Answer)
                await _replay(answer, scope, receive, send)
            else:
                await self._carry_out(self._records, found, sealer, scope, receive, send)
        except _KNOWN as error:
            response = await self._show(request, error)
            await response(scope, receive, send)

    async def _carry_out(
        self,
        records: IdempotencyRecords,
        claim: Claim,
        sealer: Sealer,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Processes the request, and stores its response if it succeeded. After an error, a repeated request
        is processed again.
        """
        body = _HashedBody(scope, receive)

        async def keep(status: int, headers: list[tuple[bytes, bytes]], content: bytes | None) -> None:
            answer = Answer(await body.fingerprint(), status, headers, content)
            sealed = sealer.seal(msgspec.msgpack.encode(answer), claim.record_id)
            try:
                await records.finish(claim, sealed)
            except RecordsUnavailable:
                log.warning("could not store a response for its idempotency key", path=scope["path"])

        recorder = _Recorder(body, send, keep)
        # The connection's own response writer would bypass the recorder.
        extensions = scope.get("extensions", {})
        scope["extensions"] = {name: value for name, value in extensions.items() if name != EXTENSION}
        try:
            async with records.held(claim):
                await self._app(scope, recorder.receive, recorder.send)
        finally:
            if not recorder.kept:
                await self._forget(records, claim)

    async def _forget(self, records: IdempotencyRecords, claim: Claim) -> None:
        try:
            await records.release(claim)
        except RecordsUnavailable:
            log.warning("could not release an idempotency key; it is locked until its lease ends")


async def _replay(answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a stored response. Raises IdempotencyKeyReused, IdempotencyNotReplayable."""
    if await _HashedBody(scope, receive).fingerprint() != answer.fingerprint:
        raise IdempotencyKeyReused(
            "This Idempotency-Key was used for another request; use a new key for each request.",
            "Idempotency-Key",
        )
    if answer.body is None:
        raise IdempotencyNotReplayable(
            f"The request was carried out before, and its response was longer than the {MAX_KEPT} bytes that "
            "are kept; use a new Idempotency-Key to run it again.",
            "Idempotency-Key",
        )
    length = (b"content-length", b"%d" % len(answer.body))
    headers = [*answer.headers, length, REPLAYED]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


class _HashedBody:
    """Hashes a request's body as it is received. A form's boundary is left out, because clients generate a
    new one for each attempt.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._done = False
        head = f"{scope['method']} {scope['path']}?".encode() + scope.get("query_string", b"") + b"\0"
        self._hash = hashlib.sha256(head)
        found = _BOUNDARY.search(scope["state"]["headers"].get(b"content-type", b""))
        self._boundary = b"" if found is None else found[1]
        self._tail = b""
        """The last bytes received, which may be the start of a boundary."""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._done:
            self._done = not message.get("more_body", False)
            self._add(message.get("body", b""))
        return message

    async def fingerprint(self) -> bytes:
        """Returns the hash of the whole body; reads the rest of it first."""
        while not self._done:
            if (await self.receive())["type"] == "http.disconnect":
                break
        return self._hash.digest()

    def _add(self, data: bytes) -> None:
        if self._boundary:
            data = (self._tail + data).replace(self._boundary, b"")
            kept = 0 if self._done else min(len(data), len(self._boundary) - 1)
            data, self._tail = data[: len(data) - kept], data[len(data) - kept :]
        self._hash.update(data)


class _Recorder:
    """Forwards a response and stores it. A whole response is stored before it is sent, so that a client that
    misses it can retry; a stream is stored when it ends.
    """

    def __init__(
        self,
        body: _HashedBody,
        send: Send,
        keep: Callable[[int, list[tuple[bytes, bytes]], bytes | None], Awaitable[None]],
    ) -> None:
        self._body = body
        self._send = send
        self._keep = keep
        self._start: Message = {}
        self._content = bytearray()
        self._streaming = asyncio.Event()
        self.kept = False

    async def receive(self) -> Message:
        """Hides a disconnect until a response is streamed: the request continues for the client's retry."""
        message = await self._body.receive()
        if message["type"] == "http.disconnect":
            await self._streaming.wait()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        more = message.get("more_body", False)
        if len(self._content) <= MAX_KEPT:
            self._content += message.get("body", b"")
        if not more and self._has_succeeded(message.get("body", b"")):
            content = bytes(self._content) if len(self._content) <= MAX_KEPT else None
            headers = [pair for pair in self._start["headers"] if not pair[0].startswith(_NOT_KEPT)]
            await self._keep(self._start["status"], headers, content)
            self.kept = True
        if not self._streaming.is_set():
            self._streaming.set()
            await self._send(self._start)
        await self._send(message)

    def _has_succeeded(self, last: bytes) -> bool:
        """Returns whether a response that ends with `last` succeeded; a stream has only if it ends with
        `[DONE]`.
        """
        is_stream = dict(self._start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
        return 200 <= self._start["status"] < 300 and (not is_stream or last.endswith(DONE))
