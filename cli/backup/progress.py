"""Shows how far a backup or restore is: one step for each store, with the bytes so far."""

from __future__ import annotations

import time

from cli.display import Step

_EVERY_S = 0.2


class ByteProgress:
    """Counts the bytes of a step and shows them a few times per second."""

    def __init__(self, step: Step, total: int | None = None) -> None:
        self._step = step
        self._total = total
        self._shown_at = 0.0
        self.size = 0

    def __call__(self, size: int) -> None:
        self.size += size
        now = time.monotonic()
        if now - self._shown_at >= _EVERY_S:
            self._shown_at = now
            self._step.detail(self.text)

    @property
    def text(self) -> str:
        if self._total is None:
            return byte_count(self.size)
        return f"{byte_count(self.size)} of {byte_count(self._total)}"


def byte_count(size: int) -> str:
    """Returns a size for people, in decimal units."""
    value, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
