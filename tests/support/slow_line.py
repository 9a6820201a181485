"""A line to a server that can be slow, and break: what a person far away has between the browser and it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

PIECE = 16 * 1024


class SlowLine:
    """Passes connections on byte for byte. `bytes_per_s` is for all that is sent to the server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._free_at = 0.0
        self.bytes_per_s: float | None = None
        self.is_broken = False

    @property
    def origin(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PIECE)  # else megabytes are under way
        self._server = await asyncio.start_server(self._pass_on, sock=listening, limit=PIECE)

    async def close(self) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break off whatever is under way, and let nobody in until `mend`."""
        self.is_broken = True
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        self.is_broken = False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_broken:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        ends = {writer, there_writer}
        self._open |= ends
        try:
            await asyncio.gather(
                self._copy(reader, there_writer, is_slow=True),
                self._copy(there_reader, writer, is_slow=False),
            )
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_slow: bool) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while piece := await source.read(PIECE):
                if is_slow:
                    await self._wait_for(len(piece))
                to.write(piece)
                await to.drain()
            to.write_eof()

    async def _wait_for(self, num_bytes: int) -> None:
        if self.bytes_per_s is None:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + num_bytes / self.bytes_per_s
        await asyncio.sleep(self._free_at - now)


@asynccontextmanager
async def slow_line(url: str) -> AsyncIterator[SlowLine]:
    """To the server of `url`, as fast as it goes until it is told to be slow."""
    place = urlsplit(url)
    assert place.hostname is not None
    line = SlowLine(place.hostname, place.port or 80)
    await line.start()
    try:
        yield line
    finally:
        await line.close()
