"""Dumps a PostgreSQL database at one snapshot, and restores a dump in one transaction, with its own programs.

The programs are those of an installation that is at least as new as the server (`cli.local.postgres` finds
them). Passwords go through the environment, never through arguments, which other accounts can see.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from cli.backup.repository import BackupRepository
from cli.errors import CliError
from cli.local.postgres import Installation, client_programs

_READ = 1 << 20


def programs_for(server_version: int, *, with_server: bool = False) -> Path:
    """Returns the folder of programs that can talk to a server of this version (150004): of the same major
    version, else of the next newer one. `with_server`: the server's own of that version, too. Raises
    `CliError`.
    """
    wanted = server_version // 10000
    usable: list[Installation] = []
    for found in client_programs():
        if found.version == wanted and (found.programs / "postgres").exists() >= with_server:
            return found.programs
        if found.version > wanted and not with_server:
            usable.append(found)
    if not usable:
        needed = f"postgresql-{wanted}" if with_server else f"postgresql-client-{wanted}"
        raise CliError(
            f"PostgreSQL's programs of version {wanted}{'' if with_server else ' or later'} are not on this "
            f"machine: install {needed}"
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


def dump(url: str, programs: Path, snapshot: str | None = None) -> AsyncIterator[bytes]:
    """Yields the dump of a snapshot (default: of this moment), in pg_dump's custom format. Raises
    `CliError`.
    """
    of = () if snapshot is None else (f"--snapshot={snapshot}",)
    return output_of(programs / "pg_dump", ("--format=custom", "--enable-row-security", *of), url)


async def output_of(program: Path, options: Iterable[str], url: str) -> AsyncIterator[bytes]:
    """Yields what one of PostgreSQL's programs writes about a server. Raises `CliError` when it fails."""
    async with _running(program, options, url, stdout=PIPE) as (process, complaints):
        assert process.stdout is not None
        while data := await process.stdout.read(_READ):
            yield data
        if await process.wait():
            raise CliError(f"{program.name} failed: {_last_line(await complaints)}")


async def restore(url: str, programs: Path, chunks: AsyncIterator[bytes]) -> None:
    """Restores a dump into an empty database, all of it or nothing. Raises `CliError`, and what `chunks`
    raises.
    """
    options = ("--no-owner", "--no-privileges", "--single-transaction")
    async with _running(programs / "pg_restore", options, url, stdin=PIPE) as (process, complaints):
        assert process.stdin is not None
        try:
            async for chunk in chunks:
                process.stdin.write(chunk)
                await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended: its message says why
        if await process.wait():
            raise CliError(f"pg_restore failed, nothing was restored: {_last_line(await complaints)}")


@asynccontextmanager
async def _running(
    program: Path, options: Iterable[str], url: str, *, stdin: int = DEVNULL, stdout: int = DEVNULL
) -> AsyncIterator[tuple[Process, asyncio.Task[bytes]]]:
    """Runs one of PostgreSQL's programs on a server; what it complains about is read beside. It is killed if
    it still runs at the end.
    """
    process = await asyncio.create_subprocess_exec(
        program,
        *(*options, "--dbname", _address(url)),
        stdin=stdin,
        stdout=stdout,
        stderr=PIPE,
        env=_environment(url),
    )
    assert process.stderr is not None
    complaints = asyncio.create_task(process.stderr.read())
    try:
        yield process, complaints
    finally:
        await _end(process)
        await complaints


async def _end(process: Process) -> None:
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
