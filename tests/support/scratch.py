"""Where tests and their private servers keep their data: in memory where there is room, else on disk.

A database copied for a test is some seven hundred files. On a disk's file system making and removing them
takes the machine half a second, in memory a twentieth.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 3 << 30
"""What there must be: servers of three processes of tests take a few hundred megabytes each."""
TEMPORARY_ROOM_BYTES = 6 << 30
"""What there must be for the temporary directories of all tests, which take a gigabyte."""
PREFIX = "rs-test-"
HELD = "held"


def put_temporary_directories_in_memory(
    memory: Path = MEMORY, room_bytes: int = TEMPORARY_ROOM_BYTES
) -> None:
    """Has pytest make them there, where there is room: what tests sync to a disk, others wait for."""
    if _has_room(memory, room_bytes):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@contextmanager
def scratch_directory(memory: Path = MEMORY, room_bytes: int = ROOM_BYTES) -> Iterator[Path]:
    """An empty directory with a short name (a socket's path has 108 bytes), gone afterwards.

    What a killed process of tests left in memory, the next one takes away.
    """
    if not _has_room(memory, room_bytes):
        memory = Path(tempfile.gettempdir())
    with (memory / f"{PREFIX}{os.getuid()}.lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        _remove_abandoned(memory)
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=memory))
        held = (directory / HELD).open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
        held.close()


def _has_room(memory: Path, room_bytes: int) -> bool:
    if not os.access(memory, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(memory)
    return found.f_bavail * found.f_frsize >= room_bytes


def _remove_abandoned(parent: Path) -> None:
    """Those whose holder has ended; a directory without a holder's file is somebody else's."""
    for file in parent.glob(f"{PREFIX}*/{HELD}"):
        with file.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(file.parent, ignore_errors=True)
