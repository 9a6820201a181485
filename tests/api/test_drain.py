"""What clients get that send a request just as an API process begins to drain."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop

from api.connections import connections_with
from api.main import DrainingServer
from tests.support.waiting import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
IDLE_GRACE = 0.3


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[DrainingServer, Callable[[], socket.socket]]]:
    """A server with idle connections that stay for 0.3 s of a drain, and what connects to it."""
    config = uvicorn.Config(
        hello,
        host="127.0.0.1",
        port=0,
        http=connections_with(60.0, idle_grace=IDLE_GRACE),
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=5,
    )
    server = DrainingServer(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    address = server.servers[0].sockets[0].getsockname()
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(address, timeout=5))
        return opened[-1]

    try:
        yield server, connect
    finally:
        server.should_exit = True
        for client in opened:
            client.close()
        await running


async def answer(client: socket.socket) -> bytes:
    """All that the server sends until it closes; empty when it resets the connection."""

    def read() -> bytes:
        parts = []
        try:
            while part := client.recv(4096):
                parts.append(part)
        except OSError:
            return b""
        return b"".join(parts)

    return await asyncio.to_thread(read)


@pytest.fixture(params=["new", "used", "begun"])
def state(request: pytest.FixtureRequest) -> str:
    """What a connection has seen before the drain."""
    return str(request.param)


async def check_a_request_as_the_drain_begins(state: str) -> None:
    async with serving() as (server, connect):
        clients = [connect() for _ in range(3)]
        for client in clients:
            if state == "used":
                client.sendall(REQUEST)
                assert (await asyncio.to_thread(client.recv, 4096)).endswith(b"hello")
            elif state == "begun":
                client.sendall(REQUEST[:9])
        if state != "new":
            await asyncio.sleep(0.05)
        server.should_exit = True
        await eventually(lambda: not server.servers[0].is_serving())
        for client in clients:
            client.sendall(REQUEST[9:] if state == "begun" else REQUEST)
        for client in clients:
            got = await answer(client)
            assert got.endswith(b"hello")
            assert b"connection: close" in got.lower()


def test_a_request_that_was_on_its_way_is_answered(state: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_a_request_as_the_drain_begins(state))


async def check_connections_that_wait_to_be_accepted() -> None:
    async with serving() as (server, connect):
        await asyncio.sleep(0.05)
        server.should_exit = True
        clients = [connect() for _ in range(5)]  # the event loop runs nothing meanwhile
        for client in clients:
            client.sendall(REQUEST)
        time.sleep(0.15)  # noqa: ASYNC251 - so that the drain begins before any is accepted
        for client in clients:
            assert (await answer(client)).endswith(b"hello")


def test_connections_that_wait_to_be_accepted_are_answered() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_connections_that_wait_to_be_accepted())


async def check_idle_connections() -> None:
    async with serving() as (server, connect):
        client = connect()
        client.sendall(REQUEST)
        assert (await asyncio.to_thread(client.recv, 4096)).endswith(b"hello")
        server.should_exit = True
        began = time.monotonic()
        assert await answer(client) == b""
        assert time.monotonic() - began < 3, "it closes before the drain's time is over"


def test_an_idle_connection_closes_soon() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check_idle_connections())
