"""How much memory a stretch of work took, as the operating system sees it."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


class MemoryWatch:
    """The largest amount held at any look, beyond what was held at the first: anonymous pages alone, since
    pages of mapped files are the system's to take back.
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
    """0 where the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    found = [line.split() for line in lines if line.startswith("RssAnon:")]
    return int(found[0][1]) << 10 if found else 0
