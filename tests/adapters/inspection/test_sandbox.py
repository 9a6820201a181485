"""What a child can do to us: nothing. And what becomes of us when processes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.inspection import InspectionRefused, SandboxUnavailable
from adapters.inspection.findings import Inspection
from adapters.inspection.sandbox import Sandbox, SandboxLimits
from tests.adapters.inspection.uploads import BASE_CONFIG, good_upload, plain_config

HOSTILE = "tests.adapters.inspection.hostile_zygote"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox(SandboxLimits(cpu_s=1), program=HOSTILE)
    await made.start()
    yield made
    await made.close()


async def do(sandbox: Sandbox, task: str, owner: str = "org_a") -> Any:
    """A task's result."""
    with BASE_CONFIG.open("rb") as file:
        return msgspec.json.decode(await sandbox.run(task, [file.fileno()], "upload", owner=owner))


async def refusal(sandbox: Sandbox, task: str) -> str:
    with pytest.raises(InspectionRefused) as caught:
        await do(sandbox, task)
    assert caught.value.field == "upload"
    return caught.value.reason


async def inspect(sandbox: Sandbox, folder: Path) -> Inspection:
    weights, config = good_upload().write(folder)
    return await sandbox.inspect(weights, config, BASE_CONFIG, owner="org_a")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


def ids_of(pid: int) -> set[int]:
    """Every user and group that a process is."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {
        int(one) for line in lines if line.startswith(("Uid:", "Gid:", "Groups:")) for one in line.split()[1:]
    }


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_there_is_no_way_out(sandbox: Sandbox) -> None:
    assert sandbox._link is not None
    guards = sandbox._link.guards
    if not guards["seccomp"]:
        pytest.skip("this kernel has no seccomp")
    assert guards["user"]
    found = await do(sandbox, "attempts")
    allowed = set() if guards["landlock"] else {"read a file", "read our source", "read the parent"}
    assert {way for way, outcome in found.items() if outcome == "done"} <= allowed
    assert not {"escaped", "escaped-folder"} & set(os.listdir("/tmp"))
    # Once the library has spoken, with Landlock or without.
    sealed = await do(sandbox, "attempts when sealed")
    assert len(sealed) > 20
    assert "done" not in sealed.values()


async def test_nothing_of_ours_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_SECRET", "hunter2")
    sandbox = Sandbox(program=HOSTILE)
    try:
        environment = await do(sandbox, "environment")
        assert "PATH" in environment
        assert not [name for name in environment if name.startswith("ROOTSTOCK")]
        assert 0 not in ids_of(sandbox.pid or 0)
        nowhere = os.stat("/dev/null").st_rdev
        assert await do(sandbox, "stderr") == [nowhere, nowhere], "and nothing reaches our log"
    finally:
        await sandbox.close()


async def test_limits(sandbox: Sandbox) -> None:
    assert "too much processor time" in await refusal(sandbox, "spin")
    assert "out of memory" in await refusal(sandbox, "hoard")
    megabytes = await do(sandbox, "hoard quietly")
    assert 100 < megabytes < 256, "the limit stands where it was said to, and is not too tight"


async def test_time_is_limited_too() -> None:
    sandbox = Sandbox(SandboxLimits(wall_s=0.5), program=HOSTILE)
    await sandbox.start()
    pid = sandbox.pid
    began = time.monotonic()
    assert "took too long" in await refusal(sandbox, "sleep")
    assert time.monotonic() - began >= 0.5
    assert sandbox.pid == pid
    await until(lambda: children_of(pid or 0) == [])
    await sandbox.close()


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("crash", "SIGSEGV"),
        ("abort", "SIG"),
        ("vanish", "no valid answer"),
        ("garbage", "no valid answer"),
        ("flood", "no valid answer"),
        ("raise", "ZeroDivisionError"),
        ("recurse", "RecursionError"),
    ],
)
async def test_a_child_that_fails_has_refused_its_file(
    sandbox: Sandbox, tmp_path: Path, task: str, reason: str
) -> None:
    pid = sandbox.pid
    found = await refusal(sandbox, task)
    assert found.startswith("could not be inspected: ")
    assert reason in found
    assert (await inspect(sandbox, tmp_path)).rank == 4
    assert sandbox.pid == pid, "the process that waits is none the worse"


async def test_an_answer_is_checked(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sandbox.run
    monkeypatch.setattr(sandbox, "run", lambda task, *rest, **options: real("nonsense", *rest, **options))
    with pytest.raises(InspectionRefused, match="no valid answer"):
        await inspect(sandbox, tmp_path)


async def test_a_child_that_is_killed_has_refused_its_file(sandbox: Sandbox, tmp_path: Path) -> None:
    pid = sandbox.pid
    assert pid is not None
    task = asyncio.create_task(refusal(sandbox, "sleep"))
    await until(lambda: children_of(pid))
    os.kill(children_of(pid)[0], signal.SIGKILL)
    assert "SIGKILL" in await task
    assert (await inspect(sandbox, tmp_path)).rank == 4
    assert sandbox.pid == pid


async def test_the_process_that_waits_is_replaced_when_it_is_killed(sandbox: Sandbox, tmp_path: Path) -> None:
    pid = sandbox.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert (await inspect(sandbox, tmp_path)).rank == 4
    assert sandbox.pid not in (None, pid)
    # And under an inspection, whose file is not to blame: it is looked at again.
    pid = sandbox.pid
    assert pid is not None
    weights, config = good_upload().write(tmp_path)
    with weights.open("rb") as w, config.open("rb") as c, BASE_CONFIG.open("rb") as b:
        task = asyncio.create_task(
            sandbox.run("slow", [file.fileno() for file in (w, c, b)], "upload", owner="org_a")
        )
        await until(lambda: children_of(pid or 0))
        orphans = children_of(pid)
        os.kill(pid, signal.SIGKILL)
        assert msgspec.json.decode(await task, type=Inspection).rank == 4
    assert sandbox.pid not in (None, pid)
    await until(lambda: not any(map(is_alive, orphans)))


async def test_a_process_that_stops_listening_is_replaced(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxLimits(wall_s=3.0), program=HOSTILE)
    await sandbox.start()
    stopped = sandbox.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    assert (await inspect(sandbox, tmp_path)).rank == 4
    assert sandbox.pid != stopped
    assert not is_alive(stopped)
    await sandbox.close()


async def test_files_that_always_kill_it_are_refused_in_the_end(sandbox: Sandbox) -> None:
    async def kill_always() -> None:
        while True:
            if sandbox.pid is not None and is_alive(sandbox.pid) and children_of(sandbox.pid):
                os.kill(sandbox.pid, signal.SIGKILL)
            await asyncio.sleep(0.01)

    killer = asyncio.create_task(kill_always())
    assert "died" in await refusal(sandbox, "sleep")
    killer.cancel()


async def test_only_so_many_at_once(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxLimits(concurrency=2), program=HOSTILE)
    await sandbox.start()
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(children_of(sandbox.pid or 0)))
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(do(sandbox, "doze") for _ in range(6)))
    watcher.cancel()
    assert most == 2
    await sandbox.close()


async def test_a_flood_of_slow_files_waits_behind_itself(tmp_path: Path) -> None:
    """Each of eight takes all of its time: another owner's file is looked at beside them."""
    sandbox = Sandbox(SandboxLimits(wall_s=2.0, concurrency=3, owner_concurrency=2), program=HOSTILE)
    await sandbox.start()
    flood = [asyncio.create_task(refusal(sandbox, "sleep")) for _ in range(8)]
    await until(lambda: len(children_of(sandbox.pid or 0)) == 2)
    weights, config = good_upload().write(tmp_path)
    assert (await sandbox.inspect(weights, config, BASE_CONFIG, owner="org_b")).rank == 4
    assert not any(task.done() for task in flood), "the first of the flood are still being looked at"
    assert len(children_of(sandbox.pid or 0)) == 2
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    await sandbox.close()


async def test_patterns_that_backtrack_for_hours_are_matched_at_once(tmp_path: Path) -> None:
    sandbox = Sandbox(SandboxLimits(cpu_s=2))
    await sandbox.start()
    upload = good_upload()
    upload.config = plain_config(rank_pattern={f".*.*.*.*.*X{i}": 4 for i in range(1024)})
    weights, config = upload.write(tmp_path)
    assert (await sandbox.inspect(weights, config, BASE_CONFIG, owner="org_a")).rank == 4
    upload.config = plain_config(target_modules=r"(?:\S|.)" * 25 + "X")
    weights, config = upload.write(tmp_path)
    with pytest.raises(InspectionRefused, match="matches no linear module") as caught:
        await sandbox.inspect(weights, config, BASE_CONFIG, owner="org_a")
    assert caught.value.field == "target_modules"
    await sandbox.close()


async def test_whoever_asks_may_go_away(sandbox: Sandbox, tmp_path: Path) -> None:
    pid = sandbox.pid
    assert pid is not None
    task = asyncio.create_task(do(sandbox, "sleep"))
    await until(lambda: children_of(pid))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not children_of(pid))
    assert (await inspect(sandbox, tmp_path)).rank == 4


async def test_closing_leaves_nothing_behind(sandbox: Sandbox) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    other = Sandbox(program=HOSTILE)
    await other.start()
    pid = other.pid
    assert pid is not None
    await asyncio.gather(*(do(other, "doze") for _ in range(3)))
    await other.close()
    assert not is_alive(pid)
    assert other.pid is None
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the loop's watcher of children


async def test_without_a_process_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable):
        await Sandbox(program="adapters.inspection.absent").start()
    sandbox = Sandbox()
    with pytest.raises(FileNotFoundError):
        await sandbox.check_file(tmp_path / "absent", "weights", owner="org_a")


async def test_a_file_is_not_to_blame_for_a_machine_that_is_full(tmp_path: Path) -> None:
    sandbox = Sandbox(program="tests.adapters.inspection.forkless_zygote")
    await sandbox.start()
    with pytest.raises(SandboxUnavailable, match="no process could be made"):
        await inspect(sandbox, tmp_path)
    await sandbox.close()


async def test_files_by_themselves(sandbox: Sandbox, tmp_path: Path) -> None:
    weights, config = good_upload().write(tmp_path)
    await sandbox.check_file(weights, "weights", owner="org_a")
    await sandbox.check_file(config, "config", owner="org_a")
    with pytest.raises(InspectionRefused) as caught:
        await sandbox.check_file(config, "weights", owner="org_a")
    assert caught.value.field == "adapter_model.safetensors"
    with pytest.raises(InspectionRefused) as caught:
        await sandbox.check_file(weights, "config", owner="org_a")
    assert caught.value.field == "adapter_config.json"


OUTLIVED = """
import asyncio, os, sys
from pathlib import Path
from adapters.inspection.sandbox import Sandbox
from tests.adapters.inspection.uploads import BASE_CONFIG, good_upload

async def main():
    sandbox = Sandbox()
    await sandbox.start()
    weights, config = good_upload().write(Path(sys.argv[1]))
    found = await sandbox.inspect(weights, config, BASE_CONFIG, owner="org_a")
    held = [name for name, holds in sandbox._link.guards.items() if holds]
    print(os.geteuid(), sandbox.pid, found.rank, *held)
    sys.stdout.flush()
    os._exit(9)

asyncio.run(main())
"""


def outlived(command: list[str], folder: Path) -> list[str]:
    """The words of a parent that died right after an inspection."""
    done = subprocess.run(
        [*command, sys.executable, "-c", OUTLIVED, str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 9, done.stderr
    return done.stdout.splitlines()[-1].split()


async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    _, pid, *_ = outlived([], tmp_path)
    await until(lambda: not is_alive(int(pid)))


@pytest.mark.skipif(os.geteuid() != 0, reason="it is no other user's now")
@pytest.mark.parametrize(
    "command",
    [["unshare", "--user"], ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]],
    ids=["another-user", "root-without-privileges"],
)
def test_whoever_starts_it(tmp_path: Path, command: list[str]) -> None:
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this kernel does not permit it")
    uid, _, rank, *held = outlived(command, tmp_path)
    assert rank == "4"
    assert (uid == "0") == (command[0] == "setpriv")
    assert {"seccomp", "landlock"} <= set(held)


async def test_what_the_kernel_refuses_is_said_once(tmp_path: Path) -> None:
    """Without seccomp, Landlock and namespaces, the limits still hold."""
    with capture_logs() as logs:
        sandbox = Sandbox(SandboxLimits(cpu_s=4), program="tests.adapters.inspection.unguarded_zygote")
        assert (await inspect(sandbox, tmp_path)).rank == 4
        os.kill(sandbox.pid or 0, signal.SIGKILL)
        found = await do(sandbox, "attempts without exec")
    said = [entry for entry in logs if entry["event"] == "sandbox lacks protections"]
    assert [entry["missing"] for entry in said] == [["landlock", "network", "seccomp"]]
    assert len(found) == 3
    assert "done" not in found.values()
    assert "too much processor time" in await refusal(sandbox, "spin")
    assert "out of memory" in await refusal(sandbox, "hoard")
    await sandbox.close()
