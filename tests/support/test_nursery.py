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


def test_what_is_imported_is_shared_by_a_run_and_ends_with_it(nursery: Nursery, tmp_path: Path) -> None:
    other, log = Nursery("json"), tmp_path / "log"
    programs = [one.start(f"{__name__}:wait", log, os.environ) for one in (nursery, other)]
    forked_by = [parent(one.pid) for one in programs]
    assert forked_by[0] != forked_by[1]
    assert parent(forked_by[0]) == parent(forked_by[1]), "the keeper"
    other.close()
    until(lambda: not command_line(programs[1].pid))
    assert programs[0].poll() is None

    code = f"""
import os, pathlib, time
from tests.support.nursery import Nursery
program = Nursery("json").start("{__name__}:wait", pathlib.Path({str(log)!r}), os.environ)
print(program.pid, flush=True)
time.sleep(600)
"""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen([sys.executable, "-c", code], env=outside, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        program = int(run.stdout.readline())
        below = [program, parent(program), parent(parent(program))]
        run.kill()
    until(lambda: not any(map(command_line, below)))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_line(pid: int) -> bytes:
    """Empty once the process has ended, whether or not its parent has noticed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
