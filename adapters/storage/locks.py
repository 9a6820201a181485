"""Locks files between the processes of one host; the kernel ends a lock with its process."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO


def locked(path: Path, mode: int) -> BinaryIO:
    """Returns the file, made if it is missing, which keeps the lock until it is closed. Blocks; with LOCK_NB
    raises BlockingIOError instead.
    """
    opened = path.open("a+b")
    try:
        fcntl.flock(opened, mode)
    except BaseException:
        opened.close()
        raise
    return opened
