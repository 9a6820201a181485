"""Programs that are forked: what they are given, how they end, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nursery import Nursery
from tests.support.waiting import until


def answer() -> int:
    """An entry function."""
    print(os.environ["ANSWER"], len(os.environ), sys.stdin.read())
    print("complaint", file=sys.stderr)
    return 7


def fail() -> int:
    raise RuntimeError("as planned")


def wait() -> int:
    print("waits", flush=True)
    time.sleep(600)
    return 0


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    opened = Nursery("json")
    yield opened
    opened.close()


def test_a_program_has_its_own_environment_log_and_status(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    program = nursery.start(f"{__name__}:answer", log, {"ANSWER": "forty-two"})
    assert program.pid not in (os.getpid(), os.getppid())
    assert program.wait(60) == program.poll() == program.returncode == 7
    assert sorted(log.read_text().splitlines()) == ["before", "complaint", "forty-two 1 "]
    program.kill()  # changes nothing: it has ended
    failed = nursery.start(f"{__name__}:fail", log, {})
    assert failed.wait(60) == 1
    assert "RuntimeError: as planned" in log.read_text()


def test_a_program_ends_by_a_signal_and_with_the_nursery(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed, terminated, left = (nursery.start(f"{__name__}:wait", log, os.environ) for _ in range(3))
    until(lambda: log.exists() and log.read_text().count("waits") == 3)
    assert killed.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0.02)
    killed.kill()
    terminated.terminate()
    assert killed.wait(60) == -signal.SIGKILL
    assert terminated.wait(60) == -signal.SIGTERM
    assert left.poll() is None
    nursery.close()
    until(lambda: not command_line(left.pid))


def command_line(pid: int) -> bytes:
    """Empty once the process has ended, whether or not its parent has noticed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
