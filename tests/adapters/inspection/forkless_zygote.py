"""The process that waits, on a machine that has no room for another process."""

from __future__ import annotations

import errno
import os
import sys

from adapters.inspection import zygote


def _full() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


if __name__ == "__main__":
    os.fork = _full
    zygote.main(sys.argv[1:])
