"""An endpoint of webhooks as tenants run them, well and badly: what it does, the path says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Heard:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HookServer:
    """`/204` is answered with that status, `/redirect` with one to `/204`; `/slow` never, `/endless` without
    an end, `/rude` with no HTTP; `/changing` with `status`.
    """

    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    status: int = 500

    def url(self, path: str, scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            sent = dict(line.split(": ", 1) for line in head[1:] if line)
            sent = {name.lower(): value for name, value in sent.items()}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.heard.append(Heard(path, sent, body))
            await self._answer(path, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if path == "/slow":
            await reader.read()  # until the other gives up
        elif path == "/rude":
            writer.write(b"220 mail.example ESMTP\r\n")
        elif path == "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
            while True:
                writer.write(b"x" * 4096)
                await writer.drain()
        else:
            status = self.status if path == "/changing" else 302 if path == "/redirect" else int(path[1:4])
            location = f"location: {self.url('/204')}\r\n" if path == "/redirect" else ""
            writer.write(f"HTTP/1.1 {status} X\r\n{location}content-length: 0\r\n\r\n".encode())
        await writer.drain()


@asynccontextmanager
async def hook_server(context: ssl.SSLContext | None = None) -> AsyncIterator[HookServer]:
    hooks = HookServer()
    server = await asyncio.start_server(hooks.serve, "127.0.0.1", 0, ssl=context)
    hooks.port = server.sockets[0].getsockname()[1]
    try:
        yield hooks
    finally:
        server.close()
