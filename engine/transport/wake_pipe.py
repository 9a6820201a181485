"""Wakes a thread that polls sockets."""

from __future__ import annotations

import os


class WakePipe:
    """A pipe to poll beside sockets. Any thread may call `wake`.

    The polling thread calls `clear` before it looks for work. Work is queued before `wake`, so one write per
    wait is enough: what is queued until the pipe is cleared is found.
    """

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable while there is something to look for."""
        self._is_awake = False

    def wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Call it when the pipe is readable."""
        os.read(self.read_fd, 4096)
        self._is_awake = False

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self._write_fd)
