"""Syncs the engine's files to disk about once a second, in a thread beside the step loop.

The step loop never waits for it. What it counted since the last sync is what a power cut can take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

log = structlog.get_logger(__name__)

SYNC_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class DiskSync:
    """A thread that calls what it is given, in order, once a second until closed."""

    def __init__(self, work: Sequence[Callable[[], None]]) -> None:
        """`work` may raise OSError: it is logged, and tried again."""
        self._work = work
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread; a disk that hangs is not waited for."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(SYNC_SECONDS):
            try:
                for one in self._work:
                    one()
            except OSError as error:
                log.error("files in flight cannot be synced to disk", reason=str(error))
