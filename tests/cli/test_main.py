"""The command line itself: help is quick, mistakes are told in one line, exit codes mean something."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cli.bench import CHECKOUT, list_benchmarks
from cli.datadir import DataDir
from tests.support.commands import rootstock

HELP_S = 0.5
HELP = [sys.executable, "-m", "cli.main", "--help"]


def test_help_is_there_before_anyone_notices() -> None:
    """In seconds of a core: how long others make it wait is not its doing."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = subprocess.run(HELP, cwd=CHECKOUT, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert shown.returncode == 0
    for command in (
        "up",
        "serve-api",
        "serve-engine",
        "work",
        "migrate",
        "tenant",
        "key",
        "adapter",
        "bench",
    ):
        assert f"\n  {command} " in shown.stdout
    assert min(spent) < HELP_S


def test_help_loads_nothing_heavy() -> None:
    heavy = "('torch', 'sqlalchemy', 'fastapi', 'redis', 'zmq', 'celery', 'openai', 'pydantic')"
    code = f"import cli.main, sys; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "--nonsense"), "No such option"),
        (("up", "--quantization", "int3"), "'int3' is not one of"),
        (("up", "--port", "65536"), "less than or equal to 65535"),
        (("up",), "no base model: pass --base DIR"),
        (("up", "--showcase"), "pass --demo too"),
        (("up", "--demo", "--once"), "pass --showcase too"),
        (("key", "create"), "Missing argument"),
        (("bench", "absent"), "no benchmark called 'absent'"),
    ],
)
def test_wrong_calls_exit_2(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data")) if arguments[0] == "up" else ()
    done = rootstock(*arguments, *data)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("variables", "quantization", "says"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "fp8", "fp8 is not supported on a CPU; use one of none, int8"),
        ({"ROOTSTOCK_DEVICE_DEVICE": "cpu"}, "int4", "int4 is not supported on a CPU"),
        ({"CUDA_VISIBLE_DEVICES": "", "ROOTSTOCK_DEVICE_DEVICE": "cuda"}, "fp8", "finds no GPU"),
    ],
)
def test_a_format_that_the_device_has_not_is_refused_before_anything_starts(
    variables: dict[str, str],
    quantization: str,
    says: str,
    tmp_path: Path,
) -> None:
    data = str(tmp_path / "data")
    done = rootstock("up", "--demo", "--quantization", quantization, "--data", data, env=variables)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "data").exists()


def test_no_such_base(tmp_path: Path) -> None:
    done = rootstock("up", "--base", str(tmp_path), "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr.startswith("rootstock: ")
    assert "holds no config.json" in done.stderr


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = rootstock("up", "--demo", "--port", str(port), "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data" / "redis").exists()


@pytest.mark.parametrize("command", ["up", "serve-engine"])
def test_a_disk_without_room_is_refused_before_anything_starts(command: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    arguments = ("--demo", "--port", "0", "--data", str(data)) if command == "up" else ()
    settings = {
        "ROOTSTOCK_DISK_MIN_FREE_BYTES": str(1 << 62),
        "ROOTSTOCK_ENGINE_DATA_DIR": str(data),
        "ROOTSTOCK_ENGINE_NULL": "true",
    }
    done = rootstock(command, *arguments, env=settings)
    assert done.returncode == 1
    assert f"too little disk space in {data}" in done.stderr + done.stdout
    assert "MB free, 4,611,686,018,427 MB required" in done.stderr + done.stdout
    assert f"lower ROOTSTOCK_DISK_MIN_FREE_BYTES (now {1 << 62})" in done.stderr + done.stdout
    assert not data.exists()


def test_a_directory_in_use(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data"):
        done = rootstock("up", "--demo", "--port", "0", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert f"in use by another rootstock up (process {os.getpid()})" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_host_that_is_not_ours(tmp_path: Path) -> None:
    done = rootstock("up", "--demo", "--host", "192.0.2.1", "--port", "0", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "cannot listen on 192.0.2.1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tenant", "list"), "ROOTSTOCK_DB_URL is not set"),
        (("migrate",), "ROOTSTOCK_DB_OWNER_URL is not set"),
        (("serve-api",), "ROOTSTOCK_DB_URL: Field required"),
        (("work",), "ROOTSTOCK_WORKER_REDIS_URL: Field required"),
    ],
)
def test_missing_settings_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = rootstock(*arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_serves_from_there(tmp_path: Path) -> None:
    done = rootstock("tenant", "list", "--data", str(tmp_path))
    assert done.returncode == 1
    assert f"nothing serves from {tmp_path}" in done.stderr


def test_a_database_that_does_not_answer() -> None:
    env = {
        "ROOTSTOCK_DB_URL": "postgresql+psycopg://nobody@127.0.0.1:9/none",
        "ROOTSTOCK_REDIS_URL": "redis://127.0.0.1:9/0",
        "ROOTSTOCK_TENANTS_KEY_SECRET": "s" * 32,
    }
    done = rootstock("tenant", "list", env=env)
    assert done.returncode == 1
    assert "PostgreSQL does not answer" in done.stderr
    assert done.stderr.count("\n") == 1


def test_benchmarks_are_listed_by_what_they_measure() -> None:
    listed = dict(list_benchmarks())
    assert "Measures tokens per second over HTTP" in listed["serving"]
    assert not {"report", "random_llama", "sse_client"} & listed.keys()
    assert "serving" in rootstock("bench").stdout


def test_a_benchmark_gets_its_arguments_and_its_status() -> None:
    done = rootstock("bench", "serving", "--concurrency", "none", "--out", "x.json")
    assert done.returncode == 2
    assert "invalid int value: 'none'" in done.stderr
