"""One client's connection: the server's own, with bounds on what a client may leave unread.

Owns how a response leaves, its head with the first of its body, the pieces of one that is made bit by bit
straight to the socket, and what a client that does not read may hold: so much in memory, for so long; then
the connection is cut, and with it ends what it asked for. Closing in order would wait for the client to read
first. Refuses to know what is sent.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import structlog
from uvicorn.protocols.http.flow_control import FlowControl

from api.request_reader import HEAD_TIMEOUT, RequestReader
from api.response_writer import EXTENSION, Hear, nothing

MAX_UNSENT = 16 * 1024
"""Bytes in this process; past it whoever sends waits."""
KERNEL_BUFFER = 64 * 1024
"""Bytes asked of the kernel. Left alone it takes megabytes, and reports progress when a third of them is
read: a slow reader would look like one that does not read.
"""

_HEAD = b"HTTP/1."

log = structlog.get_logger(__name__)


class HeadFirst:
    """A transport that holds a response's head back for what follows in the same turn of the loop: one packet
    instead of two, and one wake-up of whoever reads it.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):  # a body that does waits for a turn, too: nothing is lost by it
            self._head = data
            self._loop.call_soon(self._let_go)
            return
        self._transport.write(data)

    def write_eof(self) -> None:
        self._let_go()
        self._transport.write_eof()

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _let_go(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class DirectResponseWriter:
    """Pieces of a response to its connection's socket, those of one turn of the loop together. The response
    is chunked: who makes it bit by bit has not said how long it is.
    """

    __slots__ = ("_flow", "_gone", "_is_lost", "_resumed", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self._is_lost = False
        self._gone: Hear = nothing
        self._resumed: Hear = nothing

    def write(self, body: bytes) -> bool:
        if self._is_lost:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self._flow.write_paused

    @property
    def paused(self) -> bool:
        return self._flow.write_paused

    async def flushed(self) -> None:
        """The socket keeps the order."""

    def watch(self, gone: Hear, resumed: Hear) -> None:
        self._gone, self._resumed = gone, resumed
        if self._is_lost:
            gone()

    def unwatch(self) -> None:
        self._gone = self._resumed = nothing

    def lose(self) -> None:
        """The connection is no more."""
        self._is_lost = True
        self._gone()

    def resume(self) -> None:
        """The client has caught up."""
        self._resumed()


class Connection(RequestReader):
    """As uvicorn makes it for every connection."""

    patience = 60.0
    """Seconds that whoever sends may be kept waiting."""
    _cut: asyncio.TimerHandle | None = None
    _outlet: DirectResponseWriter

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        super().connection_made(cast("asyncio.Transport", HeadFirst(transport, self.loop)))
        self._outlet = DirectResponseWriter(self.transport, self.flow)
        self._extensions = {EXTENSION: self._outlet}

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep()
        super().connection_lost(exc)
        self._outlet.lose()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._cut is None:
            self._cut = self.loop.call_later(self.patience, self._cut_off)

    def resume_writing(self) -> None:
        self._keep()
        super().resume_writing()
        self._outlet.resume()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while. What is unread still will stay so."""
        if self.transport.get_write_buffer_size():
            self._cut_off()
        else:
            super().timeout_keep_alive_handler()

    def _keep(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _cut_off(self) -> None:
        log.warning("client does not read: its connection is cut", client=self.client and self.client[0])
        self.transport.abort()


def connections_with(patience: float, head_timeout: float = HEAD_TIMEOUT) -> type[asyncio.Protocol]:
    """The class of connections that are cut when nothing is read for `patience` seconds, and on which a
    request's headers may take `head_timeout` seconds to arrive.
    """
    made = type("Connection", (Connection,), {"patience": patience, "head_timeout": head_timeout})
    return cast("type[asyncio.Protocol]", made)
