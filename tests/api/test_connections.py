"""Connections of clients that do not read, on a real server."""

from __future__ import annotations

import asyncio
import select
import socket

import uvloop
from starlette.types import Receive, Scope, Send

from api.connections import KERNEL_BUFFER, MAX_UNSENT, HeadFirst
from tests.support.slow_client import REQUEST, asked
from tests.support.waiting import AwakeClock, eventually

PIECE = b"x" * 4096


class Endless:
    """Sends for as long as it may."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watch = asyncio.create_task(self._watch(receive))
        while not self.ended:
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.num_sent += 1
            await asyncio.sleep(0)
        await watch

    async def _watch(self, receive: Receive) -> None:
        self.ended.append((await receive())["type"])


async def test_who_does_not_read_is_cut_off_and_holds_little_until_then() -> None:
    app = Endless()
    async with asked(app, patience=0.5) as client:
        await eventually(lambda: app.ended == ["http.disconnect"])
        received = client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        # The kernel doubles what it is asked for.
        assert app.num_sent * len(PIECE) < 2 * KERNEL_BUFFER + received + MAX_UNSENT + 2 * len(PIECE)


async def test_who_reads_slowly_is_served() -> None:
    app = Endless()
    loop = asyncio.get_running_loop()
    async with asked(app, patience=1.5) as client, AwakeClock() as clock:
        while clock.seconds < 2.0:
            await loop.sock_recv(client, 1 << 20)
            await asyncio.sleep(0.01)
        assert not app.ended


class Written(asyncio.Transport):
    """What reaches the socket, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self.closed
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_a_head_leaves_with_what_follows_in_the_same_turn() -> None:
    written = Written()
    transport = HeadFirst(written, asyncio.get_running_loop())
    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert written.writes == [b"HTTP/1.1 200 OK\r\n\r\nbody", b"more"]


async def test_a_head_that_nothing_follows_waits_for_no_more_than_a_turn() -> None:
    written = Written()
    transport = HeadFirst(written, asyncio.get_running_loop())
    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    assert written.writes == []
    await asyncio.sleep(0)
    assert written.writes == [b"HTTP/1.1 200 OK\r\n\r\n"]
    transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    transport.close()
    assert written.writes[1:] == [b"HTTP/1.1 204 No Content\r\n\r\n"]
    transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await asyncio.sleep(0)
    assert len(written.writes) == 2, "nothing is written to a closed connection"


async def test_answers_of_a_real_server_are_whole() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        size = len(scope["path"])
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % size), (b"x-request-id", b"one")],
            }
        )
        await send({"type": "http.response.body", "body": b"x" * size})

    async with asked(app, patience=5.0) as client:
        loop = asyncio.get_running_loop()
        answer = await loop.sock_recv(client, 4096)
        assert answer.endswith(b"\r\n\r\nx")
        await loop.sock_sendall(client, b"GET /abcd HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await loop.sock_recv(client, 4096)).endswith(b"\r\n\r\nxxxxx")


class Prompt:
    """Looks whether its second answer has left, before its turn of the loop is over."""

    def __init__(self) -> None:
        self.client: socket.socket | None = None
        self.has_left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"x"})
        if self.client is not None:
            self.has_left = bool(select.select([self.client], [], [], 2.0)[0])


def test_an_answer_does_not_wait_for_other_work_of_its_turn() -> None:
    """On the loop that serves, which has not always written at once."""

    async def ask() -> bool:
        app = Prompt()
        async with asked(app, patience=5.0) as client:
            loop = asyncio.get_running_loop()
            await loop.sock_recv(client, 4096)
            app.client = client
            await loop.sock_sendall(client, REQUEST)
            assert (await loop.sock_recv(client, 4096)).endswith(b"\r\n\r\nx")
        return app.has_left

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask())
