"""What is done once an answer is out, and keeps nobody waiting: lines of the log, counters.

Owns putting it off and doing it together: a process that has few requests at once has other work between any
two, and what the processor has at hand for the first line costs a third for the next. Refuses to know what is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

MOST = 16
"""Pieces of work that are put off at once: together they take half a millisecond."""

log = structlog.get_logger(__name__)


class DeferredWork:
    """Of one process.

    Args:
        delay: seconds for which work may be put off; 0: until the event loop's next turn.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timer: asyncio.Handle | None = None

    def add(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have `work` done soon, in the order of calls."""
        self._waiting.append((work, arguments))
        if len(self._waiting) >= MOST:
            self.run()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay, self.run) if self._delay else loop.call_soon(self.run)

    def run(self) -> None:
        """Do what was put off, now: before somebody looks, and when the process ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for work, arguments in waiting:
            try:
                work(*arguments)
            except Exception:
                log.exception("work put off has failed", work=work.__qualname__)
