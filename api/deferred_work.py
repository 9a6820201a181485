"""Runs work after a response has left, such as writing log lines and updating counters, in batches.

No request waits for it. A batch is cheaper: with warm caches, each further log line costs a third of the
first.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import structlog

MOST = 16
"""Most functions that wait; together they take half a millisecond."""

log = structlog.get_logger(__name__)


class DeferredWork:
    """Deferred work of one process.

    Args:
        delay: seconds for which work can be deferred; 0: until the next event-loop iteration.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timer: asyncio.Handle | None = None

    def add(self, work: Callable[..., None], *arguments: Any) -> None:
        """Schedules `work`. Work runs in the order of calls."""
        self._waiting.append((work, arguments))
        if len(self._waiting) >= MOST:
            self.run()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay, self.run) if self._delay else loop.call_soon(self.run)

    def run(self) -> None:
        """Runs all deferred work now, before metrics are read and when the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        # Not in the context of the request that happens to run it: its ids would be in the others' log lines.
        contextvars.Context().run(_run_all, waiting)


def _run_all(waiting: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for work, arguments in waiting:
        try:
            work(*arguments)
        except Exception:
            log.exception("deferred work failed", work=work.__qualname__)
