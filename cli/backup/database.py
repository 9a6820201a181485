"""Dumps a PostgreSQL database at one snapshot, and restores a dump in one transaction, with its own programs.

The programs are those of an installation that is at least as new as the server (`cli.local.postgres` finds
them). Passwords go through the environment, never through arguments, which other accounts can see.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from cli.backup.repository import BackupRepository
from cli.errors import CliError
from cli.local.postgres import installations

_READ = 1 << 20


def programs_for(server_version: int) -> Path:
    """Returns the folder of programs that can talk to a server of this version (150004): of the same major
    version, else of the next newer one. Raises `CliError`.
    """
    wanted = server_version // 10000
    usable = [one for one in installations() if one.version >= wanted and (one.programs / "pg_dump").exists()]
    if not usable:
        raise CliError(
            f"the server is PostgreSQL {wanted}, and no pg_dump of that version or a later one is here: "
            f"install postgresql-client-{wanted}"
        )
    return min(usable, key=lambda one: one.version).programs


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[AsyncConnection]:
    """Opens one transaction that sees all committed rows as of its beginning, of every tenant. Raises
    `CliError` when the server is away.
    """
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ")
    try:
        async with engine.begin() as connection:
            await BackupRepository(connection).open()
            yield connection
    except DBAPIError as error:
        reason = str(error.orig).partition("\n")[0]
        raise CliError(f"PostgreSQL, as {_shown(url)}: {reason}") from error
    finally:
        await engine.dispose()


async def dump(url: str, programs: Path, snapshot: str) -> AsyncIterator[bytes]:
    """Yields the dump of the snapshot, in pg_dump's custom format. Raises `CliError`."""
    process = await asyncio.create_subprocess_exec(
        programs / "pg_dump",
        *("--format=custom", "--enable-row-security", f"--snapshot={snapshot}", "--dbname", _address(url)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(url),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaints = asyncio.create_task(process.stderr.read())
    try:
        while data := await process.stdout.read(_READ):
            yield data
        if await process.wait():
            raise CliError(f"pg_dump failed: {_last_line(await complaints)}")
    finally:
        await _end(process)
        await complaints


async def restore(url: str, programs: Path, chunks: Iterable[bytes]) -> None:
    """Restores a dump into an empty database, all of it or nothing. Raises `CliError`, and what `chunks`
    raises.
    """
    process = await asyncio.create_subprocess_exec(
        programs / "pg_restore",
        *("--no-owner", "--no-privileges", "--single-transaction", "--dbname", _address(url)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(url),
    )
    assert process.stdin is not None
    assert process.stderr is not None
    complaints = asyncio.create_task(process.stderr.read())
    try:
        try:
            for chunk in chunks:
                process.stdin.write(chunk)
                await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended: its message says why
        if await process.wait():
            raise CliError(f"pg_restore failed, nothing was restored: {_last_line(await complaints)}")
    finally:
        await _end(process)
        await complaints


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills the program if it still runs: its transaction is rolled back."""
    if process.returncode is None:
        process.kill()
        await process.wait()


def _address(url: str) -> str:
    """Returns the URL for PostgreSQL's own programs, without the password."""
    bare = make_url(url).set(drivername="postgresql")
    return bare._replace(password=None).render_as_string(hide_password=False)


def _environment(url: str) -> dict[str, str]:
    password = make_url(url).password
    return {
        **os.environ,
        "PGOPTIONS": "-c rootstock.tenant=*",
        "PGCONNECT_TIMEOUT": "10",
        **({} if password is None else {"PGPASSWORD": str(password)}),
    }


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
