"""Answers that leave bit by bit: over plain ASGI, and straight to the socket."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from api.connections import DirectResponseWriter
from api.response_writer import AsgiResponseWriter, response_writer_for
from tests.support.slow_client import REQUEST, asked
from tests.support.waiting import eventually

PIECE = b"x" * 4096
PATIENCE = 60.0


class Slow:
    """An ASGI server that sends when it is let, and hears what it is told."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.let = asyncio.Event()
        self.heard: asyncio.Queue[Message] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        await self.let.wait()
        self.sent.append(message["body"])
        assert message["more_body"]

    async def receive(self) -> Message:
        return await self.heard.get()


async def test_what_comes_while_a_piece_is_under_way_leaves_after_it_together() -> None:
    server, calls = Slow(), []
    writer = AsgiResponseWriter(server.receive, server.send)
    writer.watch(lambda: calls.append("gone"), lambda: calls.append("resumed"))
    assert not writer.paused
    assert writer.write(b"one") is False
    await asyncio.sleep(0)
    writer.write(b"two")
    writer.write(b"three")
    assert writer.paused
    server.let.set()
    await writer.flushed()
    await asyncio.sleep(0)
    assert server.sent == [b"one", b"twothree"]
    assert (calls, writer.paused) == (["resumed"], False)
    writer.unwatch()
    writer.write(b"four")
    await writer.flushed()
    await asyncio.sleep(0)
    assert calls == ["resumed"], "nobody asks any more"


async def test_what_is_written_before_word_of_resuming_puts_that_off() -> None:
    loop, calls = asyncio.get_running_loop(), []

    async def send(message: Any) -> None:
        if message["body"] == b"one":
            loop.call_soon(writer.write, b"two")
        else:
            await asyncio.sleep(0.01)
            calls.append("two is sent")

    writer = AsgiResponseWriter(Slow().receive, send)
    writer.watch(lambda: None, lambda: calls.append("resumed"))
    writer.write(b"one")
    await eventually(lambda: "resumed" in calls)
    assert calls == ["two is sent", "resumed"]
    writer.unwatch()


async def test_a_client_that_hangs_up_is_told_of_over_asgi() -> None:
    server, calls = Slow(), []
    writer = AsgiResponseWriter(server.receive, server.send)
    writer.watch(lambda: calls.append("gone"), lambda: None)
    server.heard.put_nowait({"type": "http.request"})
    server.heard.put_nowait({"type": "http.disconnect"})
    await eventually(lambda: calls == ["gone"])
    writer.unwatch()


class Bitwise:
    """Writes pieces through the writer until it is to wait, and again when it may."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.written = 0
        self.calls: list[str] = []
        self.kinds: list[type] = []
        self._over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        writer = response_writer_for(scope, receive, send)
        self.kinds.append(type(writer))

        def go_on() -> None:
            self.calls.append("resumed")
            while self.written < self.most and not self._over.is_set():
                self.written += 1
                if not writer.write(PIECE):
                    return
            self._over.set()

        def gone() -> None:
            self.calls.append("gone")
            self._over.set()

        writer.watch(gone, go_on)
        go_on()
        await self._over.wait()
        writer.unwatch()
        await writer.flushed()
        await send({"type": "http.response.body", "body": b"end", "more_body": False})


async def test_pieces_go_straight_to_the_socket_and_wait_for_who_reads_slowly() -> None:
    app, loop = Bitwise(most=200), asyncio.get_running_loop()
    async with asked(app, PATIENCE) as client:
        await eventually(lambda: app.written > 1)
        written = -1
        while written != app.written:  # until what is kept for it is full
            written = app.written
            await asyncio.sleep(0.05)
        assert app.kinds == [DirectResponseWriter]
        assert app.written < app.most, "who does not read is not written to without end"
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await loop.sock_recv(client, 1 << 16)
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        chunk = b"1000\r\n" + PIECE + b"\r\n"
        assert body == app.most * chunk + b"3\r\nend\r\n0\r\n\r\n"
        assert app.calls.count("resumed") > 1
        await loop.sock_sendall(client, REQUEST)  # the connection is as good as new
        assert (await loop.sock_recv(client, 12)) == b"HTTP/1.1 200"
        assert app.kinds == [DirectResponseWriter, DirectResponseWriter]


async def test_a_client_that_hangs_up_is_told_of_at_once() -> None:
    app = Bitwise(most=10_000)
    async with asked(app, PATIENCE) as client:
        await eventually(lambda: app.written > 1)
        client.close()
        await eventually(lambda: "gone" in app.calls)
        written = app.written
        await asyncio.sleep(0.05)
        assert app.written == written
