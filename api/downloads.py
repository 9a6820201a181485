"""Answers that are files: what browsers are told of them, and bodies whose first piece precedes the 200."""

from __future__ import annotations

from collections.abc import AsyncIterator


def attachment(filename: str) -> dict[str, str]:
    """Headers of a tenant's document: saved under that name, a plain one, and kept by nobody between."""
    return {
        "content-disposition": f'attachment; filename="{filename}"',
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }


async def beginning_with(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """`first`, which was waited for so that what is wrong is told in time, and what follows it."""
    yield first
    async for piece in rest:
        yield piece
