"""Work that waits for others' servers, beside the tasks: in a thread with an event loop of its own.

Owns that there is one such piece of work at a time. A task that waited for an endpoint which does not answer
would keep metering waiting; this returns at once. What is begun here may be cut off with the process: it is
to be such that somebody takes it up again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundThread:
    """Of one process. `close` it at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Begin with it, unless what was begun before still goes on. It opens and closes all it uses."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        self._thread.start()
        return True

    def close(self, patience: float = 5.0) -> None:
        """Wait for what goes on, for so many seconds at most."""
        if self._thread is not None:
            self._thread.join(patience)

    def _run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            asyncio.run(work())
        except Exception:
            logger.exception("%s failed", self._name)
