"""Runs work that waits for other servers in a background thread with an event loop of its own.

One piece of work runs at a time. A task that waited for an endpoint without a response would delay metering;
`start` returns at once. The work may be cut off with the process, so it must be such that it is repeated.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class BackgroundThread:
    """One background thread of this process. `close` it at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Starts the work unless the previous work still runs. The work opens and closes all it uses."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        self._thread.start()
        return True

    def close(self, patience: float = 5.0) -> None:
        """Waits for the work, at most `patience` seconds."""
        if self._thread is not None:
            self._thread.join(patience)

    def _run(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            asyncio.run(work())
        except Exception:
            log.exception("background thread failed", thread=self._name)
