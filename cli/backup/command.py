"""Defines `rootstock backup`, `backup drill`, `backup verify`, `backup secrets` and `rootstock restore`.

Heavy modules are imported by the commands.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CliError, UsageError
from cli.printing import Data

if TYPE_CHECKING:
    from cli.backup.archive import Backup
    from cli.backup.point_in_time import PointInTime
    from cli.display import Display

backup_app = typer.Typer(
    help="Back up the service, and prove that backups restore.", invoke_without_command=True
)

KeyFile = Annotated[
    Path,
    typer.Option(
        "--key-file",
        envvar="ROOTSTOCK_BACKUP_KEY_FILE",
        help="File whose content encrypts the backup. Without it, no backup can be read: keep it elsewhere.",
    ),
]
Until = Annotated[
    datetime | None,
    typer.Option(
        help="Recover the database to this moment, in UTC, after the backup. Needs --wal and a backup with "
        "--base-backup."
    ),
]
Wal = Annotated[Path | None, typer.Option("--wal", help="Directory of PostgreSQL's archived log.")]
_MOMENT = "%Y-%m-%d %H:%M:%S UTC"
BackupPath = Annotated[Path, typer.Argument(metavar="BACKUP", help="Directory of a backup.")]


@backup_app.callback()
def backup(
    context: typer.Context,
    to: Annotated[Path | None, typer.Option(help="Directory to make; it must not exist.")] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(envvar="ROOTSTOCK_BACKUP_KEY_FILE", help="File whose content encrypts the backup."),
    ] = None,
    bases: Annotated[bool, typer.Option("--bases", help="Also copy published base models.")] = False,
    base_backup: Annotated[
        bool,
        typer.Option("--base-backup", help="Add what `restore --until` needs: a base backup of the server."),
    ] = False,
    data: Data = None,
) -> None:
    """Copy PostgreSQL, objects, packed adapters, usage and secrets of a running service, encrypted.

    Exit status 1 when the database names objects that the store does not have; the backup has the rest.
    """
    if context.invoked_subcommand is not None:
        return
    if to is None or key_file is None:
        raise UsageError("name the directory to make with --to, and the key with --key-file")
    from cli.backup.archive import BackupWriter
    from cli.backup.sealed_files import read_operator_key
    from cli.backup.taking import BackupRun
    from cli.backup.unfinished import unfinished_directory
    from cli.service_access import environment_of

    environment, operator_key = environment_of(data), read_operator_key(key_file)
    with _shown() as display, unfinished_directory(to, "unfinished") as folder:
        writer = BackupWriter(folder, operator_key)
        run = BackupRun(environment, data, writer, display, bases, base_backup)
        manifest = asyncio.run(run.run())
    print(
        f"{to}: backup {manifest.id}, with everything acknowledged by {manifest.moment:%Y-%m-%d %H:%M:%S} UTC"
    )
    for note in manifest.notes:
        print(f"not in the backup: {note}")
    if manifest.deleted:
        print(f"{len(manifest.deleted)} objects were deleted while the backup was made")
    if manifest.unavailable:
        for key, why in sorted(manifest.unavailable.items())[:10]:
            print(f"{key}: {why}")
        raise CliError(
            f"the database names {len(manifest.unavailable)} objects that could not be copied: restore them "
            "from an older backup"
        )


@backup_app.command("drill")
def drill(
    path: BackupPath,
    key_file: KeyFile,
    evidence: Annotated[Path | None, typer.Option(help="JSON file to write the result to.")] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(help="Directory with room for the restored service. Default: the temporary directory."),
    ] = None,
    until: Until = None,
    wal: Wal = None,
    data: Data = None,
) -> None:
    """Restore a backup into a scratch place, prove ledger, invoices, audit log and objects; exit 1 if
    anything is wrong. The result is recorded in the audit log of the service, if one is named.
    """
    from cli.backup.drill import run_drill
    from cli.backup.recording import record_drill
    from cli.backup.report import as_json, as_text
    from cli.datadir import write_private_json
    from cli.service_access import environment_of

    if scratch is not None and not scratch.is_dir():
        raise UsageError(f"--scratch {scratch}: there is no such directory")
    with _shown() as display:
        found = asyncio.run(run_drill(_opened(path, key_file), scratch, display, _point(until, wal)))
    print(as_text(found))
    if evidence is not None:
        try:
            write_private_json(evidence, as_json(found))
        except OSError as error:
            raise CliError(f"--evidence: {error.strerror}: {evidence}") from error
    environment = environment_of(data)
    if "ROOTSTOCK_DB_URL" in environment:
        with _shown():
            asyncio.run(record_drill(environment, as_json(found)))
    else:
        print(
            "Not recorded, no service is named here: run `rootstock backup record` there, with --evidence.",
            file=sys.stderr,
        )
    if not found.passed:
        raise typer.Exit(1)


@backup_app.command("record")
def record(
    evidence: Annotated[Path, typer.Argument(help="JSON file of a drill that was run elsewhere.")],
    data: Data = None,
) -> None:
    """Record in the service's audit log that a drill was done, and its result."""
    from cli.backup.recording import read_evidence, record_drill
    from cli.service_access import environment_of

    found = read_evidence(evidence)
    with _shown():
        entry = asyncio.run(record_drill(environment_of(data), found))
    print(f"recorded: drill of {entry.target_id}, {'passed' if entry.details['passed'] else 'failed'}")


@backup_app.command("verify")
def verify(path: BackupPath, key_file: KeyFile) -> None:
    """Read every file of a backup; exit 1 naming the first that is damaged, cut off or of another backup."""
    from cli.backup.progress import ByteProgress, byte_count

    found = _opened(path, key_file)
    with _shown() as display, display.step("Verify") as step:
        progress = ByteProgress(step, found.size)
        for size in found.verify():
            progress(size)
        step.detail(f"{len(found.manifest.files)} files, {byte_count(progress.size)}, all whole")


@backup_app.command("secrets")
def secrets(
    path: BackupPath,
    key_file: KeyFile,
    out: Annotated[Path, typer.Option(help="Directory to make, which only this account can enter.")],
) -> None:
    """Write the settings and key files of a backup to a new directory, in clear."""
    from cli.backup.secrets import write_out

    for file in write_out(_opened(path, key_file).secrets(), out):
        print(file)


def restore(
    path: BackupPath,
    key_file: KeyFile,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory to make for `rootstock up`. Default: restore into the empty servers of the "
            "ROOTSTOCK_* settings."
        ),
    ] = None,
    until: Until = None,
    wal: Wal = None,
) -> None:
    """Restore a backup into empty servers, or into a new directory for `rootstock up`."""
    from cli.backup.restoring import new_data_directory, restore_to_servers
    from cli.service_access import environment_of

    found, point = _opened(path, key_file), _point(until, wal)

    async def into_directory(data: Path, display: Display) -> None:
        async with new_data_directory(found, data, display, point):
            pass

    with _shown() as display:
        if data is not None:
            asyncio.run(into_directory(data, display))
        else:
            asyncio.run(restore_to_servers(found, environment_of(None), display, point))
    moment = until or found.manifest.moment
    print(f"restored {found.manifest.id}, with everything acknowledged by {moment:{_MOMENT}}")
    if data is not None:
        print(f"start it with `rootstock up --data {data}`")
    print("Keys that were revoked since are valid again: revoke them once more.")


def _point(until: datetime | None, wal: Path | None) -> PointInTime | None:
    if until is None and wal is None:
        return None
    if until is None or wal is None:
        raise UsageError("--until and --wal go together: the moment, and the archived log that leads to it")
    from cli.backup.point_in_time import PointInTime

    return PointInTime(until.replace(tzinfo=UTC), wal)


def _opened(path: Path, key_file: Path) -> Backup:
    from cli.backup.archive import Backup
    from cli.backup.sealed_files import read_operator_key

    return Backup(path, read_operator_key(key_file))


@contextmanager
def _shown() -> Iterator[Display]:
    """Shows progress on standard error, so that reports can be piped."""
    from cli.display import closing_display, open_display
    from cli.service_access import plain_errors, silence_logs

    silence_logs()
    with closing_display(open_display(sys.stderr)) as display, plain_errors():
        yield display
