"""How an answer that is made bit by bit leaves: pieces handed over at once, word of when to wait, and of a
client that has gone.

Owns the interface, and its form over plain ASGI, which any server offers. Our own connections offer a shorter
way (`api.connections`): no task is woken for a piece. Refuses to know what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

EXTENSION = "rootstock.outlet"
"""Where in a scope's extensions a server puts its own."""


Hear = Callable[[], None]


class ResponseWriter(Protocol):
    """Of one response, between its head and its last piece, which go the ordinary way."""

    def write(self, body: bytes) -> bool:
        """Send a piece; never waits. False: the client has to catch up first. What is handed over before it
        has is kept all the same.
        """
        ...

    @property
    def paused(self) -> bool:
        """Whether the client has to catch up."""
        ...

    async def flushed(self) -> None:
        """Until nothing that was handed over stands in the way of the last piece."""
        ...

    def watch(self, gone: Hear, resumed: Hear) -> None:
        """From now on call `gone` when the client hangs up, or has, and `resumed` when it has caught up. The
        request's body must have been read.
        """
        ...

    def unwatch(self) -> None:
        """Call them no more."""
        ...


def nothing() -> None:
    """For who need not be told."""


class AsgiResponseWriter:
    """Over `send` and `receive`: one piece at a time is under way."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._resumed: Hear = nothing
        self._waiting = b""
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def write(self, body: bytes) -> bool:
        self._waiting += body
        if not self.paused:
            self._sending = asyncio.create_task(self._send_waiting())
        return False

    @property
    def paused(self) -> bool:
        return self._sending is not None and not self._sending.done()

    async def flushed(self) -> None:
        if self._sending is not None:
            await self._sending

    def watch(self, gone: Hear, resumed: Hear) -> None:
        self._resumed = resumed
        self._listening = asyncio.create_task(self._listen(gone))

    def unwatch(self) -> None:
        self._resumed = nothing
        if self._listening is not None:
            self._listening.cancel()

    async def _send_waiting(self) -> None:
        while self._waiting:
            body, self._waiting = self._waiting, b""
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self.paused:
            self._resumed()

    async def _listen(self, gone: Hear) -> None:
        message: Message = {"type": "http.request"}
        while message["type"] != "http.disconnect":
            message = await self._receive()
        gone()


def response_writer_for(scope: Scope, receive: Receive, send: Send) -> ResponseWriter:
    """The server's own where it offers one."""
    offered: ResponseWriter | None = scope.get("extensions", {}).get(EXTENSION)
    return AsgiResponseWriter(receive, send) if offered is None else offered
