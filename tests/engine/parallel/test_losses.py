"""A rank that dies or hangs ends the engine within seconds, and the engine says which one and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest
import zmq

from engine.parallel.messages import Alive, FromRank, UnloadAdapter, decoder
from engine.parallel.rank import Reports
from engine.parallel.ranks import RankLost
from engine.protocol import SamplingParams, Submit
from tests.engine.parallel.group import Group, engine_of
from tests.engine.runner.bases import write_base
from tests.support.waiting import until

SIZES = {"max_rows": 4, "context_length": 128}
ENDLESS = SamplingParams(100, temperature=0.0, ignore_eos=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_base(tmp_path / "base")
    return tmp_path / "base"


def _steps(group: Group, seconds: float) -> None:
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        if not group.core.has_work:
            number += 1
            assert group.core.submit(Submit(f"r{number}", "t", [5, 6, 7], ENDLESS)) is None
        group.core.step()


@pytest.mark.usefixtures("forked_ranks")
def test_a_killed_rank_while_steps_run(base: Path, tmp_path: Path) -> None:
    with engine_of(2, base, tmp_path, **SIZES) as group:
        [pid] = group.rank_pids
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(RankLost, match=r"^rank 1 of 2 ended with signal 9$"):
            _steps(group, 20)
        assert time.monotonic() - began < 5


def test_a_killed_rank_while_nothing_runs(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "t"))
    with engine_of(2, base, tmp_path, **SIZES) as group:
        assert not list((tmp_path / "t").glob("rs-ranks-*")), "engines leave nothing behind"
        os.kill(group.rank_pids[0], signal.SIGKILL)
        until(lambda: group.server.failures, 5, "the loss is reported")
        assert [str(error) for error in group.server.failures] == ["rank 1 of 2 ended with signal 9"]


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_that_hangs_is_killed(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.parallel.ranks.SILENT_SECONDS", 1.5)
    with engine_of(2, base, tmp_path, **SIZES) as group:
        [pid] = group.rank_pids
        threading.Timer(0.3, os.kill, (pid, signal.SIGSTOP)).start()
        with pytest.raises(RankLost, match=r"^rank 1 of 2 did not answer for 1\.5 s and was killed$"):
            _steps(group, 20)


@pytest.mark.usefixtures("forked_ranks")
def test_a_rank_whose_step_fails_says_so(base: Path, tmp_path: Path) -> None:
    with engine_of(2, base, tmp_path, **SIZES) as group:
        group.send(UnloadAdapter(99))
        until(lambda: group.server.failures, 10, "the failure is reported")
        assert str(group.server.failures[0]).startswith("rank 1 of 2 failed: ")


def test_ranks_end_with_rank_0(base: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tests.engine.parallel.group import engine_of\n"
        f"with engine_of(2, Path({str(base)!r}), Path({str(tmp_path)!r}), max_rows=4) as group:\n"
        "    print(group.rank_pids[0], flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        pid = next(int(line) for line in iter(lines.readline, "") if line.strip().isdigit())
        process.kill()
        process.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), 5, "the rank ends")


def test_a_rank_that_ends_reports_no_more() -> None:
    context = zmq.Context()
    receiver = context.socket(zmq.PULL)
    endpoint = f"inproc://{uuid.uuid4()}"
    receiver.bind(endpoint)
    reports = Reports(context, endpoint)
    reports.send(Alive(1))
    reports.close()
    reports.send(Alive(2))
    assert decoder(FromRank).decode(receiver.recv()) == Alive(1)
    with pytest.raises(zmq.Again):
        receiver.recv(zmq.NOBLOCK)
    receiver.close()
    context.term()
