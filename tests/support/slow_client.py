"""A client that reads no more than its test does, on a server with the API's own connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from api.connections import connections_with
from tests.support.waiting import eventually

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def asked(app: ASGIApp, patience: float) -> AsyncIterator[socket.socket]:
    """A connection that has asked `app`; with a small buffer, so that the server's fills.

    `patience`: seconds that the server waits for who does not read.
    """
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http=connections_with(patience), lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
    await loop.sock_sendall(client, REQUEST)
    try:
        yield client
    finally:
        client.close()
        server.should_exit = True
        await running
