"""Children that behave badly: the supervisor restarts, gives up and kills as it says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from cli.supervisor import (
    Backoff,
    ChildFailed,
    Event,
    Program,
    Supervisor,
    describe_exit,
    how_it_ended,
    rotate,
    tail,
)

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
QUICK = Backoff(first_s=0.05, limit_s=0.2, steady_s=5.0)


class Stage:
    """A supervisor, what it told, and a way to write children in one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.supervisor = Supervisor(self.events.append, QUICK)

    def program(self, name: str, code: str, grace_s: float = 5.0) -> Program:
        argv = (sys.executable, "-S", "-c", code)
        return Program(name, argv, dict(os.environ), self.folder / f"{name}.log", grace_s)

    def kinds(self) -> list[tuple[str, str]]:
        return [(event.child, event.kind) for event in self.events]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.supervisor.stop_all()


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_a_killed_child_is_started_again_with_growing_pauses(stage: Stage) -> None:
    child = await stage.supervisor.start(stage.program("engine", SLEEP))
    child.settle()
    pids = set()
    for lives in (1, 2, 3):
        await until(lambda: child.pid is not None)
        assert child.pid is not None
        pids.add(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda lives=lives: child.num_starts == lives + 1)
    assert len(pids) == 3
    assert stage.kinds() == [("engine", "died"), ("engine", "restarted")] * 3
    pauses = [event.detail for event in stage.events if event.kind == "died"]
    assert pauses == [f"was killed by SIGKILL, restarting it in {s} s" for s in ("0.05", "0.1", "0.2")]


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(first_s=0.5, limit_s=4.0)
    assert [backoff.pause(n) for n in (1, 2, 3, 4, 5, 1000)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


async def test_a_steady_life_resets_the_pause(tmp_path: Path) -> None:
    events: list[Event] = []
    supervisor = Supervisor(events.append, Backoff(first_s=0.05, limit_s=10.0, steady_s=0.0))
    stage = Stage(tmp_path)
    child = await supervisor.start(stage.program("api", "pass"))
    child.settle()
    await until(lambda: child.num_starts >= 4)
    await supervisor.stop_all()
    assert all("0.05 s" in event.detail for event in events if event.kind == "died")


async def test_death_before_ready_is_a_failed_start_with_the_last_lines(stage: Stage) -> None:
    code = "import sys; [print('line', i, flush=True) for i in range(40)]; sys.exit('no such weights')"
    child = await stage.supervisor.start(stage.program("engine", code))
    with pytest.raises(ChildFailed, match="engine exited with code 1 while starting") as caught:
        await asyncio.wait_for(child.failed(), 60)
    assert caught.value.tail[-2:] == ["line 39", "no such weights"]
    assert len(caught.value.tail) == 12
    assert child.num_starts == 1


async def test_sigterm_lets_a_child_finish_its_work(stage: Stage) -> None:
    code = (
        "import signal, time\n"
        "def end(*_):\n time.sleep(0.2); print('drained', flush=True); raise SystemExit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True)\nwhile True: time.sleep(1)"
    )
    program = stage.program("worker", code)
    child = await stage.supervisor.start(program)
    child.settle()
    await until(lambda: tail(program.log) == ["up"])
    await stage.supervisor.stop("worker")
    assert tail(program.log) == ["up", "drained"]
    assert stage.events == []
    assert child.pid is None


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(stage: Stage) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    program = stage.program("api", code, grace_s=0.3)
    child = await stage.supervisor.start(program)
    child.settle()
    await until(lambda: tail(program.log) == ["up"])
    pid = child.pid
    assert pid is not None
    await stage.supervisor.stop("api")
    assert stage.kinds() == [("api", "killed")]
    assert not alive(pid)


async def test_grandchildren_die_with_their_child(stage: Stage) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\ntime.sleep(600)"
    )
    program = stage.program("worker", code)
    child = await stage.supervisor.start(program)
    child.settle()
    await until(lambda: bool(tail(program.log)))
    grandchild = int(tail(program.log)[0])
    assert alive(grandchild)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: not alive(grandchild))


async def test_stop_during_the_pause_starts_nothing_more(tmp_path: Path) -> None:
    events: list[Event] = []
    supervisor = Supervisor(events.append, Backoff(first_s=2.0, limit_s=2.0))
    child = await supervisor.start(Stage(tmp_path).program("api", "pass"))
    child.settle()
    await until(lambda: bool(events))
    await supervisor.stop_all()
    await asyncio.sleep(2.2)
    assert child.num_starts == 1


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    code = f"""
import asyncio, os, sys
from pathlib import Path
from cli.supervisor import Program, Supervisor
async def main():
    supervisor = Supervisor(print)
    argv = (sys.executable, "-S", "-c", "import time; time.sleep(600)")
    child = await supervisor.start(Program("x", argv, dict(os.environ), Path({str(log)!r})))
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline, "the child outlived its supervisor"
        time.sleep(0.01)


async def test_a_program_that_cannot_be_executed(stage: Stage) -> None:
    program = Program("engine", (str(stage.folder / "absent"),), {}, stage.folder / "engine.log")
    with pytest.raises(FileNotFoundError):
        await stage.supervisor.start(program)
    assert stage.supervisor.children == {}


async def test_names_are_unique(stage: Stage) -> None:
    await stage.supervisor.start(stage.program("api", SLEEP))
    with pytest.raises(ValueError, match="already running"):
        await stage.supervisor.start(stage.program("api", SLEEP))


def test_a_log_is_cut_when_it_grew_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 10)
        assert not rotate(log, limit_bytes=40)
        writer.write(b"last\n")
        assert rotate(log, limit_bytes=40)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "api.log.1").read_bytes().endswith(b"old\nlast\n")
    assert tail(tmp_path / "absent.log") == []


def test_a_log_that_cannot_be_moved_stays(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_bytes(b"old\n" * 10)
    (tmp_path / "api.log.1").mkdir()
    assert not rotate(log, limit_bytes=30)
    assert log.read_bytes() == b"old\n" * 10


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-64) == "was killed by SIGRTMAX"
    assert describe_exit(-200) == "was killed by signal 200"


def test_a_program_that_says_why_it_stopped_is_quoted(tmp_path: Path) -> None:
    reason = tmp_path / "stopped"
    program = Program("engine", ("true",), {}, tmp_path / "log", reason=reason)
    assert how_it_ended(program, 1) == "exited with code 1", "it said nothing"
    reason.write_text("stopped: disk full at /data: no space".ljust(1024))
    assert how_it_ended(program, 1) == "stopped: disk full at /data: no space"
    assert how_it_ended(program, -9) == "was killed by SIGKILL", "what it said before is not why"
    reason.write_text(" " * 1024)
    assert how_it_ended(program, 3) == "exited with code 3"
