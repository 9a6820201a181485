"""Programs that are forks instead of starts: what they are given, whose they are, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forks
from tests.support.forks import forked_programs
from tests.support.waiting import until

COMMAND = [sys.executable, "-m", "json.tool"]


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PROGRAMS", ("json.tool",))


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    with forked_programs(("json.tool",)):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*COMMAND, *arguments], **(pipes | options))  # type: ignore[call-overload, no-any-return]


def fact(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_it_has_its_own_arguments_streams_and_status() -> None:
    assert start("--compact").communicate(b'{"a": 1}', 60) == (b'{"a":1}\n', b"")
    failed = start()
    _, problem = failed.communicate(b"{", 60)
    assert failed.returncode == 1
    assert b"Expecting property name" in problem


def test_it_is_a_child_in_its_folder_and_session_and_ends_by_a_signal(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    noted, before = str(tmp_path / "noted"), os.getpid()

    def prepared() -> None:
        Path(noted).write_text(f"{before} {os.getppid()}")

    program = start(start_new_session=True, cwd=tmp_path, pass_fds=[writing], preexec_fn=prepared)
    os.close(writing)
    assert int(fact(program.pid, "stat").rpartition(b")")[2].split()[1]) == os.getpid()
    assert fact(program.pid, "comm") == b"json.tool\n"
    assert b"support/forks.py" in fact(program.pid, "cmdline"), "it is a fork"
    assert Path(f"/proc/{program.pid}/cwd").readlink() == tmp_path
    assert os.getsid(program.pid) == program.pid
    assert Path(noted).read_text() == f"{before} {before}"
    open_there = Path(f"/proc/{program.pid}/fd")
    until(lambda: {one.name for one in open_there.iterdir()} == {"0", "1", "2", str(writing)})
    program.kill()
    assert program.wait(60) == -signal.SIGKILL
    program.communicate()
    assert os.read(reading, 1) == b"", "no other process had it open"
    os.close(reading)


def test_others_start_as_usual_and_so_does_this_one_afterwards() -> None:
    for command in ([sys.executable, "-c", "print(1)"], ["echo", "1"]):
        with forked_programs(("json.tool",)):
            assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\n"
    with forked_programs(("json.tool",)):
        pass
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as program:
        until(lambda: b"json.tool" in fact(program.pid, "cmdline"))
        program.communicate(b"{}")
    assert program.returncode == 0
