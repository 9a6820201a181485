"""Measures the memory used by a stretch of work, as the operating system reports it."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


class MemoryWatch:
    """Tracks the peak of memory beyond the start: anonymous pages only, since the system can reclaim the
    pages of mapped files.
    """

    def __init__(self) -> None:
        self._before = _anonymous_bytes()
        self._largest = self._before

    def look(self) -> None:
        self._largest = max(self._largest, _anonymous_bytes())

    @property
    def peak_bytes(self) -> int:
        return self._largest - self._before


def _anonymous_bytes() -> int:
    """Returns 0 where the system does not report it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    found = [line.split() for line in lines if line.startswith("RssAnon:")]
    return int(found[0][1]) << 10 if found else 0
