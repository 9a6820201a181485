"""Objects as they come about, as server-sent events, until nothing more will.

Owns the form of the stream: one event per object, comments while nothing comes, `[DONE]` or an error as the
last. Refuses to know what the objects tell of.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import structlog
from starlette.responses import StreamingResponse

from api.errors import FACES, body_of
from api.openai.stream import DONE, PING

log = structlog.get_logger(__name__)


def event_feed(source: AsyncIterator[Sequence[Mapping[str, Any]]], ping_interval: float) -> StreamingResponse:
    """A response of what `source` yields. It must yield now and then, if only nothing."""
    return StreamingResponse(
        _events(source, ping_interval),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _events(
    source: AsyncIterator[Sequence[Mapping[str, Any]]], ping_interval: float
) -> AsyncIterator[bytes]:
    sent = time.monotonic()
    try:
        async with aclosing(source) as objects:  # type: ignore[type-var]  # generators, all of them
            async for batch in objects:
                if batch:
                    yield b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in batch)
                elif time.monotonic() - sent < ping_interval:
                    continue
                else:
                    yield PING
                sent = time.monotonic()
    except tuple(FACES) as error:
        log.warning("event feed broke off", error=type(error).__name__)
        yield b"data: " + body_of(error) + b"\n\n"
    else:
        yield DONE
