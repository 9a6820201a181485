"""Fetches a base in a process that stops in the middle of a file, for a test to kill it there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from adapters.published_bases.cache import BaseCache
from adapters.storage import LocalStore


class StuckStore(LocalStore):
    """Yields one piece of every large object, says so, and then nothing."""

    async def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        pieces = 0
        async for piece in super().get(key, start=start, length=length):
            if pieces == 1:
                print("stuck", flush=True)
                await asyncio.sleep(3600)
            pieces += 1
            yield piece


if __name__ == "__main__":
    asyncio.run(BaseCache(Path(sys.argv[2]), StuckStore(Path(sys.argv[1]))).fetch(sys.argv[3]))
