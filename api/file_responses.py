"""Builds file responses: download headers, and streams whose first chunk is read before the status is
sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator


def attachment(filename: str) -> dict[str, str]:
    """Returns the headers of a download, saved as `filename` (plain ASCII) and never cached."""
    return {
        "content-disposition": f'attachment; filename="{filename}"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }


async def beginning_with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields `first`, which the caller has read so that an error still has its status, then the rest."""
    yield first
    async for chunk in rest:
        yield chunk
