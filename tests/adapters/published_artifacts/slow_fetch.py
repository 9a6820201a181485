"""Fetches a packed adapter in a process that stops in the middle of it, for a test to kill it there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from adapters.published_artifacts.cache import ArtifactCache
from tests.adapters.published_bases.slow_fetch import StuckStore

if __name__ == "__main__":
    asyncio.run(ArtifactCache(Path(sys.argv[2]), StuckStore(Path(sys.argv[1])), 1 << 30).hold(sys.argv[3]))
