"""Restores a backup into empty servers, or into a new data directory for `rootstock up`.

A restore that is killed leaves nothing that looks whole. A data directory is made beside its name and renamed
at the end. In servers, the database comes last, in one transaction, and the role that serves gets its rights
only after everything is there: until then every process refuses to start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from adapters.storage import ObjectStore, StorageError, StorageSettings, open_store
from cli.backup import secrets
from cli.backup.archive import BASE, DATABASE, IN_FLIGHT, USAGE, Backup
from cli.backup.database import dump, open_database, programs_for, restore
from cli.backup.errors import DamagedBackup, TargetNotEmpty
from cli.backup.objects import assert_empty, restore_artifacts, restore_objects
from cli.backup.point_in_time import PointInTime, recovered
from cli.backup.progress import ByteProgress
from cli.backup.repository import BackupRepository
from cli.backup.unfinished import unfinished_directory
from cli.backup.usage import import_pending
from cli.datadir import DataDir
from cli.display import Display
from cli.errors import CliError
from cli.local.postgres import serving_url, start_postgres
from cli.local.server import LocalServerError
from cli.processes import settings_from_environment
from cli.service_access import plain_errors, setting, upgrade_schema
from db import schema
from db.session import Database


@dataclass(frozen=True)
class Target:
    """Where a backup is restored."""

    owner_url: str
    serving_url: str
    store: ObjectStore
    store_name: str
    artifacts: Path


def servers_of(environment: Mapping[str, str]) -> Target:
    """Returns the servers that settings name. Raises `CliError`."""
    settings = settings_from_environment(StorageSettings, environment)
    return Target(
        setting(environment, "ROOTSTOCK_DB_OWNER_URL"),
        setting(environment, "ROOTSTOCK_DB_URL"),
        open_store(settings),
        settings.url,
        Path(setting(environment, "ROOTSTOCK_ENGINE_ARTIFACTS_DIR")),
    )


async def restore_to_servers(
    backup: Backup, environment: Mapping[str, str], display: Display, point: PointInTime | None = None
) -> None:
    """Restores into the empty servers that settings name. Raises `CliError`."""
    target = servers_of(environment)
    secrets.check_key_secret(backup.secrets(), environment)
    await restore_to(backup, target, display, point)


@asynccontextmanager
async def new_data_directory(
    backup: Backup,
    path: Path,
    display: Display,
    point: PointInTime | None = None,
    *,
    ephemeral: bool = False,
) -> AsyncIterator[Target]:
    """Restores into a new data directory at `path`, whose PostgreSQL runs until the block ends. Without an
    error, the directory then gets its name. Raises `CliError`. Call it on the main thread.
    """
    try:
        with (
            unfinished_directory(path, "restoring") as unfinished,
            DataDir(unfinished) as data,
            start_postgres(data.path, ephemeral=ephemeral) as server,
        ):
            secrets.write_to_data(backup.secrets(), data.path)
            store = open_store(StorageSettings(url=f"file://{quote(str(data.objects))}"))
            target = Target(server.url, serving_url(server.url), store, str(data.objects), data.artifacts)
            await restore_to(backup, target, display, point)
            yield target
    except LocalServerError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or path}: {error.strerror}") from error


async def restore_to(
    backup: Backup, target: Target, display: Display, point: PointInTime | None = None
) -> None:
    """Verifies the backup, then restores into the empty target: the database as of the backup, or of a later
    moment. Raises `CliError`.
    """
    check_release(backup)
    if point is not None and BASE not in backup.manifest.files:
        raise CliError(f"{backup.path} has no base backup: make backups with --base-backup for --until")
    with display.step("Verify") as step:
        progress = ByteProgress(step, backup.size)
        for size in backup.verify():
            progress(size)
        step.detail(f"{len(backup.manifest.files)} files, {progress.text}")
    try:
        await _assert_empty(target)
        with display.step("Objects") as step:
            progress = ByteProgress(step)
            num_objects = await restore_objects(backup, target.store, progress)
            num_artifacts = restore_artifacts(backup, target.artifacts, progress)
            step.detail(f"{num_objects} objects, {num_artifacts} packed adapters, {progress.text}")
    except StorageError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or target.artifacts}: {error.strerror}") from error
    await _restore_database(backup, target, display, point)


async def _dumped(backup: Backup, point: PointInTime | None) -> AsyncIterator[bytes]:
    """Yields the database, as pg_dump writes it."""
    if point is None:
        for chunk in backup.read(DATABASE):
            yield chunk
        return
    manifest = backup.manifest
    async with recovered(backup.read(BASE), manifest.source, manifest.server_version, point) as url:
        async for chunk in dump(url, programs_for(manifest.server_version)):
            yield chunk


def check_release(backup: Backup) -> None:
    """Raises `CliError` for a backup of a later release."""
    manifest, known = backup.manifest, schema.expected_revision()
    if manifest.schema > known:
        raise CliError(
            f"{backup.path} is of release {manifest.release} with schema {manifest.schema}, this release "
            f"knows {known}: install that release, or a later one"
        )


async def _assert_empty(target: Target) -> None:
    async with open_database(target.owner_url) as connection:
        num_tables = await BackupRepository(connection).num_tables()
    if num_tables:
        raise TargetNotEmpty("the database of ROOTSTOCK_DB_OWNER_URL", f"it has {num_tables} tables")
    await assert_empty(target.store, target.store_name)
    found = next((path for path in target.artifacts.rglob("*") if path.is_file()), None)
    if found is not None:
        raise TargetNotEmpty(str(target.artifacts), f"it has {found.name}")


async def _restore_database(
    backup: Backup, target: Target, display: Display, point: PointInTime | None
) -> None:
    owner_url, manifest = target.owner_url, backup.manifest
    with display.step("PostgreSQL") as step:
        async with open_database(owner_url) as connection:
            version = await BackupRepository(connection).server_version()
        programs = programs_for(max(version, manifest.server_version // 10000 * 10000))
        await restore(owner_url, programs, _dumped(backup, point))
        async with open_database(owner_url) as connection:
            rows = await BackupRepository(connection).row_counts()
        differing = sorted(table for table, count in manifest.rows.items() if rows.get(table) != count)
        if differing and point is None:
            raise DamagedBackup(DATABASE, f"it has other rows of {differing[0]} than the manifest says")
        step.detail(f"{sum(rows.values())} rows of {len(rows)} tables")
    with display.step("Usage") as step:
        if manifest.schema != schema.expected_revision():
            upgrade_schema(owner_url)
        database = Database(owner_url, statement_timeout=600)
        try:
            with plain_errors():
                changed = await import_pending(
                    database, b"".join(backup.read(USAGE)), b"".join(backup.read(IN_FLIGHT))
                )
        finally:
            await database.close()
        step.detail(f"{changed} requests added or extended")
    with display.step("Rights", done="granted"):
        upgrade_schema(owner_url, target.serving_url)
