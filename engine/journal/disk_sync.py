"""Syncs the engine's files to disk about once a second, in a thread beside the step loop.

The step loop never waits for it. A power cut loses what was counted since the last sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

log = structlog.get_logger(__name__)

SYNC_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class DiskSync:
    """A thread that calls the given functions, in order, once a second until closed."""

    def __init__(self, work: Sequence[Callable[[], None]]) -> None:
        """`work` may raise OSError: it is logged, and tried again."""
        self._work = work
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, without waiting for a disk that hangs."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.wait(SYNC_SECONDS):
            try:
                for one in self._work:
                    one()
            except OSError as error:
                log.error("cannot sync the in-flight table to disk; retrying in a second", reason=str(error))
