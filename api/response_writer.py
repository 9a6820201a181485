"""Writes chunks of a streamed response without waiting, with backpressure and notice of a disconnect.

Defines the interface, and its implementation over plain ASGI for any server. Our own connections have a
faster one (`api.connections`), which wakes no task per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

EXTENSION = "rootstock.response_writer"
"""Key of a server's own writer in a scope's extensions."""


Callback = Callable[[], None]


class ResponseWriter(Protocol):
    """Writes a response's chunks between its head and its last chunk, which are sent through ASGI."""

    def write(self, body: bytes) -> bool:
        """Writes a chunk without waiting. Returns False if the client has to catch up first; chunks written
        meanwhile are buffered.
        """
        ...

    @property
    def paused(self) -> bool:
        """Whether the client has to catch up first."""
        ...

    async def flushed(self) -> None:
        """Waits until all chunks are sent, so that the last one can follow."""
        ...

    def watch(self, gone: Callback, resumed: Callback) -> None:
        """Calls `gone` when the client disconnects, or has already, and `resumed` when it has caught up. The
        request's body must have been read.
        """
        ...

    def unwatch(self) -> None:
        """Stops these calls."""
        ...


def do_nothing() -> None:
    """Does nothing; the default callback."""


class AsgiResponseWriter:
    """Writes through ASGI's `send`, one message at a time."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._resumed: Callback = do_nothing
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

    def watch(self, gone: Callback, resumed: Callback) -> None:
        self._resumed = resumed
        self._listening = asyncio.create_task(self._listen(gone))

    def unwatch(self) -> None:
        self._resumed = do_nothing
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

    async def _listen(self, gone: Callback) -> None:
        message: Message = {"type": "http.request"}
        while message["type"] != "http.disconnect":
            message = await self._receive()
        gone()


def response_writer_for(scope: Scope, receive: Receive, send: Send) -> ResponseWriter:
    """Returns the server's own writer if it offers one, else one over ASGI."""
    offered: ResponseWriter | None = scope.get("extensions", {}).get(EXTENSION)
    return AsgiResponseWriter(receive, send) if offered is None else offered
