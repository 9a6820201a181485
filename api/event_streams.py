"""Streams objects as server-sent events, as they are created, until the source ends.

One event per object, comments during silence, and `[DONE]` or an error at the end.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import structlog
from starlette.responses import StreamingResponse

from api.errors import ERROR_RESPONSES, body_of
from api.openai.stream import DONE, PING

log = structlog.get_logger(__name__)


def event_stream(
    source: AsyncIterator[Sequence[Mapping[str, Any]]], ping_interval: float
) -> StreamingResponse:
    """Returns a response that streams what `source` yields. The source must yield regularly, if only an empty
    batch.
    """
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
        async with aclosing(source) as objects:  # type: ignore[type-var]  # all of them are generators
            async for batch in objects:
                if batch:
                    yield b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in batch)
                elif time.monotonic() - sent < ping_interval:
                    continue
                else:
                    yield PING
                sent = time.monotonic()
    except tuple(ERROR_RESPONSES) as error:
        log.warning("event stream failed", error=type(error).__name__)
        yield b"data: " + body_of(error) + b"\n\n"
    else:
        yield DONE
