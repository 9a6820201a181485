"""Keeps connections to PostgreSQL when they are closed, for the next test that opens one.

A new one costs twelve milliseconds of CPU, most of them in the server: it forks a process, which reads the
catalogs anew. What a closed connection had set, prepared, locked or listened to ends as if it were gone.
"""

from __future__ import annotations

import asyncio
import os
import select
import warnings
from typing import Any

import psycopg
from psycopg._preparing import PrepareManager
from psycopg.pq import TransactionStatus

MOST = 6
"""Kept of one kind. Servers have two hundred connections in all."""

_kept: dict[tuple[Any, ...], list[KeptConnection]] = {}
"""By what they were opened with."""


class KeptConnection(psycopg.AsyncConnection):
    opened_with: tuple[Any, ...] | None = None
    opened_autocommit = False
    opened_in = ""
    """The test that has it, which says who left it open when it is collected much later."""

    def __del__(self, *_: Any) -> None:
        if not self.closed:
            warnings.warn(f"{self.opened_in} left a connection open", ResourceWarning, stacklevel=1)

    async def close(self) -> None:
        kept = _kept.setdefault(self.opened_with, []) if self.opened_with is not None else None
        if kept is None or len(kept) >= MOST or not await self._is_as_new():
            await super().close()
        else:
            kept.append(self)

    async def end(self) -> None:
        await super().close()

    async def _is_as_new(self) -> bool:
        if self.closed or self.info.transaction_status != TransactionStatus.IDLE:
            return False
        try:
            await self.set_autocommit(True)
            await self.execute("DISCARD ALL", prepare=False)
            for reset in (self.set_isolation_level, self.set_read_only, self.set_deferrable):
                await reset(None)  # type: ignore[operator]
            await self.set_autocommit(self.opened_autocommit)
        except (psycopg.Error, asyncio.CancelledError):
            return False
        threshold, self._prepared = self.prepare_threshold, PrepareManager()
        self.prepare_threshold = threshold
        self._notice_handlers.clear()
        self._notify_handlers.clear()
        return True

    @property
    def is_alive(self) -> bool:
        """Whether the server has said nothing since: it would say that it ends."""
        looking = select.poll()
        looking.register(self.fileno(), select.POLLIN)
        return not self.closed and not looking.poll(0)


async def connect(*arguments: Any, **options: Any) -> psycopg.AsyncConnection:
    opened_with = (arguments, *sorted(options.items()))
    kept = _kept.get(opened_with, [])
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    while kept:
        found = kept.pop()
        if found.is_alive:
            found.opened_in = test
            found.lock = asyncio.Lock()  # the last one may belong to another event loop
            return found
        await found.end()
    made = await KeptConnection.connect(*arguments, **options)
    made.opened_with, made.opened_autocommit, made.opened_in = opened_with, made.autocommit, test
    return made


def kept_processes() -> list[int]:
    """The server's processes of the connections that are kept."""
    return [one.info.backend_pid for kept in _kept.values() for one in kept if not one.closed]


def end_kept() -> None:
    for kept in _kept.values():
        for one in kept:
            one.pgconn.finish()
    _kept.clear()
