"""Finds free ports for servers that must be told which port to use.

Each test process has a range of its own. The kernel takes ports for connections, and for servers that ask
for any, from higher ones, and Ray's processes take lower ones: none of them can take a port between the probe
and the server's start.
"""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST = 22_000
EACH = 1_000
"""Ports of a test process."""
_offsets = count(os.getpid() % EACH)
"""Begins anywhere, so that runs beside one another seldom try the same."""


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nothing listens."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(EACH):
        port = FIRST + worker * EACH + next(_offsets) % EACH
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"all {EACH} ports of this test process are in use")
