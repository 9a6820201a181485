"""Batches look-ups of single keys: keys requested while queries run are fetched by one later query.

A caller never waits for a query that started before its call, so it sees everything committed by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_QUERIES = 2
"""Queries that run at the same time, so that one slow query does not delay all others."""
MAX_KEYS = 64
"""Keys per query: reading its rows blocks the event loop."""


class BatchLoader(Generic[K, V]):
    """Serves `get` with few calls of `look_up`, without adding a delay to collect keys. `close` it at the
    end.
    """

    def __init__(self, look_up: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._look_up = look_up
        self._waiting: list[tuple[K, asyncio.Future[V | None]]] = []
        self._queries: set[asyncio.Task[None]] = set()
        self._start: asyncio.Handle | None = None

    async def get(self, key: K) -> V | None:
        """Returns the value, or None if it was not found. Raises what `look_up` raised for the batch."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[V | None] = loop.create_future()
        self._waiting.append((key, found))
        if self._start is None and len(self._queries) < MAX_QUERIES:
            self._start = loop.call_soon(self._begin)  # with the other keys requested in this turn
        return await found

    async def close(self) -> None:
        """Cancels running queries and the callers that still wait."""
        if self._start is not None:
            self._start.cancel()
        waiting, self._waiting = self._waiting, []
        for _, found in waiting:
            found.cancel()
        for query in self._queries:
            query.cancel()
        if self._queries:
            await asyncio.wait(self._queries)

    def _begin(self) -> None:
        self._start = None
        waiting = [(key, found) for key, found in self._waiting if not found.done()]  # others were cancelled
        wanted, self._waiting = waiting[:MAX_KEYS], waiting[MAX_KEYS:]
        if not wanted:
            return
        query = asyncio.create_task(self._query(wanted))
        self._queries.add(query)
        query.add_done_callback(self._ended)

    def _ended(self, query: asyncio.Task[None]) -> None:
        self._queries.discard(query)
        if self._waiting and self._start is None:
            self._begin()

    async def _query(self, wanted: Sequence[tuple[K, asyncio.Future[V | None]]]) -> None:
        try:
            answers = await self._look_up(list(dict.fromkeys(key for key, _ in wanted)))
        except asyncio.CancelledError:
            for _, found in wanted:
                found.cancel()
            raise
        except Exception as error:  # noqa: BLE001  raised to the callers that wait for it
            for _, found in wanted:
                if not found.done():
                    found.set_exception(error)
            return
        for key, found in wanted:
            if not found.done():
                found.set_result(answers.get(key))
