"""Reads event streams with a bare HTTP/1.1 client, so that a benchmark on shared cores measures the server.

One request over one connection: headers, chunked transfer coding, `data:` lines with their times of arrival.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class HttpError(Exception):
    """The server answered with another status than 200."""


@dataclass(frozen=True)
class Event:
    """One `data:` line; `at` is `time.perf_counter()` when it had arrived."""

    data: bytes
    at: float


@asynccontextmanager
async def post_for_events(
    url: str, body: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[AsyncIterator[Event]]:
    """POST JSON and read the answer's events up to `[DONE]`. Raises `HttpError`, `OSError`, `EOFError`."""
    parts = urlsplit(url)
    assert parts.scheme == "http"
    assert parts.hostname is not None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
    try:
        payload = json.dumps(body).encode()
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(payload)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            raise HttpError(f"HTTP {status}: {(await reader.read(2000)).decode(errors='replace')}")
        if b"transfer-encoding: chunked" not in head.lower():
            raise HttpError("the answer is not a chunked stream")
        async with aclosing(_events(reader)) as events:
            yield events
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[Event, None]:
    pending = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        at = time.perf_counter()
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                data = line[6:].rstrip()
                if data == b"[DONE]":
                    return
                yield Event(data, at)
    raise EOFError("the stream ended without [DONE]")
