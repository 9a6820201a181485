"""Extends uvicorn's HTTP connection with a fast path for streams, and with bounds for slow readers.

A response's head leaves in one packet with the start of its body, and chunks of a stream go straight to the
socket. A client that does not read can hold a bounded amount of memory for a bounded time; then the
connection is aborted and its request cancelled. An orderly close would wait for the client to read first.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import structlog
from uvicorn.protocols.http.flow_control import FlowControl

from api.request_reader import HEAD_TIMEOUT, RequestReader
from api.response_writer import EXTENSION, Callback, do_nothing

MAX_UNSENT = 16 * 1024
"""Unsent bytes in this process above which writing pauses."""
KERNEL_BUFFER = 64 * 1024
"""Send buffer of the socket in bytes. By default the kernel takes megabytes and reports progress only when a
third of them is read, so that a slow reader would look like one that does not read.
"""

_HEAD = b"HTTP/1."

log = structlog.get_logger(__name__)


class HeadFirst:
    """A transport that holds a response's head back until the end of the event-loop iteration, so that head
    and body leave in one packet and the client wakes up once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):  # a body that starts like a head is delayed too, without harm
            self._head = data
            self._loop.call_soon(self._flush_head)
            return
        self._transport.write(data)

    def write_eof(self) -> None:
        self._flush_head()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush_head()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)


class DirectResponseWriter:
    """Writes chunks of a response straight to its connection's socket. The response has no content length, so
    it is sent with chunked encoding.
    """

    __slots__ = ("_flow", "_gone", "_is_lost", "_resumed", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self._is_lost = False
        self._gone: Callback = do_nothing
        self._resumed: Callback = do_nothing

    def write(self, body: bytes) -> bool:
        if self._is_lost:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return not self._flow.write_paused

    @property
    def paused(self) -> bool:
        return self._flow.write_paused

    async def flushed(self) -> None:
        """Returns at once: the socket keeps the order."""

    def watch(self, gone: Callback, resumed: Callback) -> None:
        self._gone, self._resumed = gone, resumed
        if self._is_lost:
            gone()

    def unwatch(self) -> None:
        self._gone = self._resumed = do_nothing

    def lose(self) -> None:
        """Marks the connection as lost and notifies the reader."""
        self._is_lost = True
        self._gone()

    def resume(self) -> None:
        """Notifies the writer that the client has caught up."""
        self._resumed()


class Connection(RequestReader):
    """One client's connection; uvicorn creates one for each."""

    patience = 60.0
    """Seconds that writing can be paused before the connection is aborted."""
    _cut: asyncio.TimerHandle | None = None
    _writer: DirectResponseWriter

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        super().connection_made(cast("asyncio.Transport", HeadFirst(transport, self.loop)))
        self._writer = DirectResponseWriter(self.transport, self.flow)
        self._extensions = {EXTENSION: self._writer}

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep()
        super().connection_lost(exc)
        self._writer.lose()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._cut is None:
            self._cut = self.loop.call_later(self.patience, self._cut_off)

    def resume_writing(self) -> None:
        self._keep()
        super().resume_writing()
        self._writer.resume()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection; aborts it if the client has left data unread."""
        if self.transport.get_write_buffer_size():
            self._cut_off()
        else:
            super().timeout_keep_alive_handler()

    def _keep(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _cut_off(self) -> None:
        log.warning(
            "aborted the connection of a client that does not read", client=self.client and self.client[0]
        )
        self.transport.abort()


def connections_with(
    patience: float, head_timeout: float = HEAD_TIMEOUT, idle_grace: float = 0.0
) -> type[asyncio.Protocol]:
    """Returns a connection class that aborts connections after `patience` seconds without the client reading,
    refuses headers that take longer than `head_timeout` seconds, and keeps idle connections open for
    `idle_grace` seconds of a drain.
    """
    own = {"patience": patience, "head_timeout": head_timeout, "idle_grace": idle_grace}
    made = type("Connection", (Connection,), own)
    return cast("type[asyncio.Protocol]", made)
