"""What the operating system is told of processes that run jobs, asked of the system itself."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.sapling import tasks
from tests.support.arithmetic import arithmetic_threads
from worker.cpu_priority import computing_threads
from worker.settings import JobsSettings

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has it")
AUTOGROUP = Path("/proc/self/autogroup")
BASE = Path(tasks.__file__).parent / "weights" / "base"
CHILD = """
import json, os
from pathlib import Path
from worker.cpu_priority import lower_priority
before = os.getsid(0)
lower_priority({nice})
group = Path("/proc/self/autogroup")
print(json.dumps({{
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "leads": os.getsid(0) == os.getpid(),
    "moved": os.getsid(0) != before,
    "group": group.read_text().split() if group.exists() else None,
}}))
"""


def standing(nice: int) -> dict[str, Any]:
    """What a child that stood behind others says of itself."""
    command = [sys.executable, "-c", CHILD.format(nice=nice)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def test_a_process_gives_way_in_its_session_and_with_it() -> None:
    """The group's niceness too: that of tasks counts inside of their group alone."""
    group_before = AUTOGROUP.read_text() if AUTOGROUP.exists() else None
    several = [standing(19), standing(7)]  # the system takes one change in a tenth of a second
    for nice, found in zip((19, 7), several, strict=True):
        assert (found["nice"], found["leads"], found["moved"]) == (nice, True, True)
        if found["group"] is not None:
            assert found["group"][1:] == ["nice", str(nice)]
    if group_before is not None:
        assert AUTOGROUP.read_text() == group_before, "others' group is left alone"


def test_a_process_that_shall_not_give_way_stays_as_it_is() -> None:
    found = standing(0)
    assert (found["nice"], found["moved"]) == (os.getpriority(os.PRIO_PROCESS, 0), False)


def test_threads_that_compute_are_idle_and_so_is_what_they_start() -> None:
    with computing_threads(1) as threads:
        assert threads.submit(os.sched_getscheduler, 0).result() == os.SCHED_IDLE

        def start_another() -> int:
            with computing_threads(1) as others:
                return others.submit(os.sched_getscheduler, 0).result()

        assert threads.submit(start_another).result() == os.SCHED_IDLE
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "not the thread that made them"


@pytest.fixture
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers with jobs open credentials of imports with."""
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", "a secret of at least thirty-two characters")


@pytest.mark.usefixtures("_secret")
async def test_jobs_compute_in_such_threads_beside_a_loop_that_is_none(tmp_path: Path) -> None:
    import torch

    from worker.assembly import open_pipeline

    settings = JobsSettings(
        base_path=BASE, base_name="sapling", engine_endpoint="ipc:///nowhere", artifacts_dir=tmp_path
    )
    runtime: Any = SimpleNamespace(
        store=None, redis=None, database=None, jobs=settings, bases=[settings.first_base]
    )
    async with AsyncExitStack() as opened:
        await open_pipeline(runtime, settings, opened)
        assert await asyncio.to_thread(os.sched_getscheduler, 0) == os.SCHED_IDLE
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert torch.is_grad_enabled(), "jobs do not switch gradients off for the process"


@pytest.mark.usefixtures("_secret")
@pytest.mark.parametrize(
    ("environment", "setting", "expected"),
    [({}, None, 1), ({"OMP_NUM_THREADS": "2"}, None, 2), ({"OMP_NUM_THREADS": "2"}, 3, 3)],
)
async def test_jobs_compute_with_a_bounded_number_of_threads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    setting: int | None,
    expected: int,
) -> None:
    import torch

    from worker.assembly import open_pipeline

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = JobsSettings(
        base_path=BASE,
        base_name="sapling",
        engine_endpoint="ipc:///nowhere",
        artifacts_dir=tmp_path,
        threads=setting,
    )
    runtime: Any = SimpleNamespace(
        store=None, redis=None, database=None, jobs=settings, bases=[settings.first_base]
    )
    with arithmetic_threads(5):
        async with AsyncExitStack() as opened:
            await open_pipeline(runtime, settings, opened)
            assert await asyncio.to_thread(torch.get_num_threads) == expected
