"""Recovers a database as of a moment after its backup: a base backup, and the archived log from there on.

The recovery runs in a private PostgreSQL in a scratch directory. What it recovered is then dumped into the
place to restore, like a backup's own dump, so the target may be any server.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from urllib.parse import quote

from sqlalchemy import make_url

from cli.backup.database import open_database, output_of, programs_for
from cli.errors import CliError
from cli.local.postgres import SOCKET_NAME, STOP, server_account
from cli.local.server import log_tail, socket_directory, spawn

_RECOVERED_WITHIN_S = 24 * 3600.0
_HBA = "local all all trust\n"


@dataclass(frozen=True, slots=True)
class PointInTime:
    """The moment to recover, and the directory of archived log files."""

    moment: datetime
    archive: Path


def base_backup(url: str, programs: Path) -> AsyncIterator[bytes]:
    """Yields a base backup of the whole server as a tar file, with the log that makes it consistent. Raises
    `CliError`, also when the role may not replicate.
    """
    return output_of(
        programs / "pg_basebackup",
        ("--pgdata=-", "--format=tar", "--wal-method=fetch", "--checkpoint=fast", "--no-password"),
        url,
    )


@asynccontextmanager
async def recovered(
    tar: Iterable[bytes], source_url: str, server_version: int, point: PointInTime
) -> AsyncIterator[str]:
    """Yields the URL of a private server with the database as of the moment. `source_url`: the URL that the
    base backup was made from, for its role and database. Raises `CliError`. Call it on the main thread.
    """
    if not point.archive.is_dir():
        raise CliError(f"--wal {point.archive}: there is no such directory")
    with TemporaryDirectory(prefix="rootstock-recovery-") as folder:
        data = Path(folder) / "postgres"
        data.mkdir(mode=0o700)
        _unpack(tar, data)
        _configure(data, point)
        with _running(Path(folder), data, server_version) as (sockets, process, log):
            source = make_url(source_url)
            place = quote(str(sockets), safe="/")
            url = f"postgresql+psycopg://{source.username}@/{source.database}?host={place}"
            await _wait_until_recovered(url, process, log)
            yield url


def _unpack(tar: Iterable[bytes], data: Path) -> None:
    """With the machine's tar, which keeps to `data` whatever the names in it: Python's only since 3.11.4."""
    arguments = ("tar", "--extract", "--no-same-owner", "--directory", str(data))
    with TemporaryFile() as said:
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=said, stderr=said) as program:
            assert program.stdin is not None
            with suppress(BrokenPipeError), program.stdin:
                for chunk in tar:
                    program.stdin.write(chunk)
        if program.returncode:
            said.seek(0)
            raise CliError(f"the base backup cannot be unpacked: {said.read(4096).decode(errors='replace')}")


def _configure(data: Path, point: PointInTime) -> None:
    """Replaces the server's own configuration, which may name files and libraries of its machine."""
    archive = shlex.quote(str(point.archive.absolute())).replace("%", "%%")
    moment = point.moment.astimezone(UTC).isoformat(sep=" ")
    settings = {
        "restore_command": f'cp {archive}/%f "%p"',
        "recovery_target_time": moment,
        "recovery_target_action": "promote",
        "hot_standby": "off",
        "archive_mode": "off",
        "fsync": "off",
        "listen_addresses": "",
        "hba_file": str(data / "pg_hba.conf"),
        "ident_file": str(data / "pg_ident.conf"),
        "max_wal_senders": "0",
    }
    lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
    (data / "postgresql.conf").write_text("".join(lines))
    (data / "postgresql.auto.conf").write_text("")
    (data / "pg_hba.conf").write_text(_HBA)
    (data / "pg_ident.conf").write_text("")
    (data / "recovery.signal").touch()
    for folder in ("pg_wal", "pg_wal/archive_status"):
        (data / folder).mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _running(
    folder: Path, data: Path, server_version: int
) -> Iterator[tuple[Path, subprocess.Popen[bytes], Path]]:
    account = server_account(data)
    if account is not None:
        folder.chmod(0o711)
        for path in (data, *data.rglob("*")):
            os.chown(path, account.uid, account.gid)
    sockets = socket_directory(folder, "postgres", SOCKET_NAME, account)
    log = folder / "postgres.log"
    programs = programs_for(server_version, with_server=True)
    process = spawn(
        [programs / "postgres", "-D", data, "-c", f"unix_socket_directories={sockets}"],
        log=log,
        stop_signal=STOP,
        account=account,
    )
    try:
        yield sockets, process, log
    finally:
        process.send_signal(STOP)
        process.wait()


async def _wait_until_recovered(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _RECOVERED_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CliError(f"the log could not be replayed to that moment: {_reason(log)}")
        try:
            async with open_database(url):
                return
        except CliError:
            await asyncio.sleep(0.1)
    raise CliError("PostgreSQL did not recover within a day")


def _reason(log: Path) -> str:
    fatal = [line.partition("FATAL:")[2].strip() for line in log_tail(log, 40).splitlines()]
    # Connections that come too early are refused with FATAL, too.
    return next(
        (line for line in reversed(fatal) if line and "the database system is" not in line), "no reason"
    )
