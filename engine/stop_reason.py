"""Writes why the engine stopped to a small file of its folder, which the supervisor shows.

The file's space is reserved at the start, so that even a full disk can be recorded.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

NAME = "stopped"
SIZE = 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StopReason:
    """The file in an engine's folder. If the disk cannot hold it, nothing is recorded."""

    def __init__(self, folder: Path) -> None:
        """Creates the file, empty."""
        self._folder = folder
        self._fd: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._fd, 0, SIZE)
        except OSError:
            return
        self._overwrite("")

    def write(self, why: BaseException | str) -> None:
        """Records why the engine stops."""
        cause = why if isinstance(why, str | OSError) else why.__cause__
        is_full = isinstance(cause, OSError) and cause.errno in _FULL
        self._overwrite(f"stopped: disk full at {self._folder}: {why}" if is_full else f"stopped: {why}")

    def _overwrite(self, text: str) -> None:
        if self._fd is not None:
            os.pwrite(self._fd, text.replace("\n", " ").encode()[:SIZE].ljust(SIZE), 0)
