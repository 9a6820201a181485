"""Fetches packed adapters for a running engine, on a thread of its own: the engine's `ArtifactFetcher`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog

from adapters.published_artifacts.cache import ArtifactCache, HeldArtifact
from adapters.published_artifacts.errors import ArtifactNotFetched
from engine.lora.fetching import FetchCounters, OnFetched

log = structlog.get_logger(__name__)

NUM_FETCHES = 4
"""Artifacts that are fetched at the same time."""
_CLOSE_S = 5.0


class StoreFetcher:
    """Holds artifacts for one engine. An artifact is absent, pending, or held; it is fetched once at a time,
    however often it is requested.
    """

    def __init__(self, cache: ArtifactCache) -> None:
        self.counters = FetchCounters()
        self._cache = cache
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._held: dict[str, HeldArtifact] = {}
        self._on_fetched: OnFetched = lambda digest, error: None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(NUM_FETCHES)
        self._thread = threading.Thread(target=self._run, name="artifact-fetcher", daemon=True)

    @property
    def directory(self) -> Path:
        return self._cache.root

    def start(self, on_fetched: OnFetched) -> None:
        self._on_fetched = on_fetched
        self._thread.start()

    def hold(self, digest: str) -> bool:
        with self._lock:
            if digest in self._held:
                return True
            if digest in self._pending:
                return False
            self._pending.add(digest)
        self._loop.call_soon_threadsafe(self._begin, self._bring(digest))
        return False

    def release(self, digest: str, *, is_suspect: bool = False) -> None:
        with self._lock:
            held = self._held.pop(digest, None)
        if held is None:
            return
        held.close()
        if is_suspect:
            self._loop.call_soon_threadsafe(self._begin, self._cache.drop_damaged(digest))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        with self._lock:
            for held in self._held.values():
                held.close()
            self._held.clear()

    # On the fetcher's thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(self, digest: str) -> None:
        """Brings one artifact and reports it."""
        counters, error, held = self.counters, None, None
        counters.fetching += 1
        try:
            async with self._turns:
                began = time.monotonic()
                held = await self._cache.hold(digest)
            if held.fetched_bytes:
                counters.fetched += 1
                counters.num_bytes += held.fetched_bytes
                counters.seconds += time.monotonic() - began
        except ArtifactNotFetched as failure:
            error = self._note(digest, failure.cause, failure)
        except Exception as failure:
            log.exception("packed adapter cannot be fetched", digest=digest)
            error = self._note(digest, "error", failure)
        finally:
            counters.fetching -= 1
            with self._lock:
                self._pending.discard(digest)
                if held is not None:
                    self._held[digest] = held
        self._on_fetched(digest, error)

    def _note(self, digest: str, cause: str, failure: Exception) -> str:
        """Counts and logs a failure. Returns the error for clients."""
        failures = self.counters.failures
        failures[cause] = failures.get(cause, 0) + 1
        log.warning("packed adapter not fetched", digest=digest, cause=cause, reason=str(failure))
        return str(failure) if isinstance(failure, ArtifactNotFetched) else type(failure).__name__
