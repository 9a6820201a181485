from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from cli.local.server import LocalServer


@pytest.fixture
def pause_redis(redis_server: LocalServer) -> Callable[[bool], None]:
    """Stop the server in its tracks, connections open, or let it go on."""

    def pause(paused: bool) -> None:
        os.kill(redis_server.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    return pause
