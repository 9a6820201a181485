"""Takes a backup of a running service: usage on its way, then objects, the database, and objects again.

Each step reads what the next one may already have, so that nothing falls between two of them. The moment of
the backup is when the first step begins: every request that was acknowledged by then is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError
from sqlalchemy import make_url

from adapters.storage import StorageSettings, StorageUnavailable, open_store
from cli.backup import secrets
from cli.backup.archive import (
    ARTIFACTS,
    BASE,
    DATABASE,
    IN_FLIGHT,
    OBJECTS,
    SECRETS,
    USAGE,
    BackupWriter,
    Manifest,
)
from cli.backup.database import dump, open_database, programs_for
from cli.backup.objects import ObjectCopies, copy_artifacts
from cli.backup.point_in_time import base_backup
from cli.backup.progress import ByteProgress, byte_count
from cli.backup.repository import BackupRepository, Snapshot
from cli.backup.usage import encoded, pending_usage
from cli.display import Display
from cli.errors import CliError
from cli.processes import settings_from_environment
from cli.reconcile_command import engines_in
from cli.service_access import setting
from engine.lora.artifact import artifact_path
from telemetry.release import installed_release


@dataclass
class BackupRun:
    """One backup of the service that `environment` names, into `writer`."""

    environment: Mapping[str, str]
    data: Path | None
    writer: BackupWriter
    display: Display
    with_bases: bool = False
    """Whether to copy published base models."""
    with_base_backup: bool = False
    """Whether to add a base backup, which the archived log can be replayed onto."""
    _rows: dict[str, int] = field(default_factory=dict)
    _named: dict[str, str] = field(default_factory=dict)
    _artifacts: set[str] = field(default_factory=set)
    _notes: list[str] = field(default_factory=list)

    async def run(self) -> Manifest:
        """Returns the manifest of the finished backup. Raises `CliError`."""
        moment = datetime.now(UTC)
        owner_url = setting(self.environment, "ROOTSTOCK_DB_OWNER_URL")
        try:
            async with open_database(owner_url):
                pass  # before anything is copied
            await self._copy_usage()
            self._copy_secrets()
            store = open_store(settings_from_environment(StorageSettings, self.environment))
            copies = ObjectCopies(store, self.writer, self.with_bases, lambda size: None)
            await self._copy_objects(copies, "Objects")
            snapshot = await self._copy_database(owner_url)
            if self.with_base_backup:
                await self._copy_server(owner_url, snapshot.server_version)
            await self._copy_objects(copies, "New objects")
            deleted, unavailable = await self._explain_missing(owner_url, copies)
        except StorageUnavailable as error:
            raise CliError(str(error)) from error
        except RedisError as error:
            raise CliError(f"Redis does not answer: {error}") from error
        except OSError as error:
            raise CliError(f"{error.filename or 'the backup'}: {error.strerror}") from error
        if copies.left_out:
            self._notes.append(
                f"{len(copies.left_out)} objects of published bases: publish them again, or pass --bases"
            )
        manifest = Manifest(
            id=self.writer.id,
            release=installed_release(),
            schema=snapshot.revision,
            server_version=snapshot.server_version,
            moment=moment,
            finished_at=datetime.now(UTC),
            wal_position=snapshot.wal_position,
            source=make_url(owner_url)._replace(password=None).render_as_string(hide_password=False),
            rows=self._rows,
            files=dict(self.writer.files),
            named=self._named,
            deleted=sorted(deleted),
            unavailable=unavailable,
            notes=self._notes,
        )
        self.writer.finish(manifest)
        return manifest

    async def _copy_usage(self) -> None:
        with self.display.step("Usage") as step:
            client = redis.asyncio.Redis.from_url(setting(self.environment, "ROOTSTOCK_REDIS_URL"))
            try:
                pending = await pending_usage(
                    secrets.engine_folders(self.environment), engines_in(self.environment), client
                )
            finally:
                await client.aclose()
            self.writer.add(USAGE, encoded(pending.events))
            self.writer.add(IN_FLIGHT, encoded(pending.in_flight))
            self._notes += [f"usage that waits on the disk of an engine: {note}" for note in pending.notes]
            step.detail(f"{len(pending.events)} events, {len(pending.in_flight)} requests in flight")

    def _copy_secrets(self) -> None:
        with self.display.step("Secrets") as step:
            found = secrets.collect(self.environment, self.data)
            self.writer.add(SECRETS, json.dumps(found).encode())
            step.detail(f"{len(found['settings'])} settings, {len(found['files'])} key files")

    async def _copy_objects(self, copies: ObjectCopies, title: str) -> None:
        with self.display.step(title) as step:
            copies.on_bytes = progress = ByteProgress(step)
            before = len(self.writer.files)
            await copies.copy_new()
            num_objects = len(self.writer.files) - before
            for _ in copy_artifacts(self._artifacts_dir, self.writer, progress):
                pass
            num_artifacts = len(self.writer.files) - before - num_objects
            step.detail(f"{num_objects} objects, {num_artifacts} packed adapters, {progress.text}")

    async def _copy_database(self, owner_url: str) -> Snapshot:
        with self.display.step("PostgreSQL") as step:
            progress = ByteProgress(step)
            async with open_database(owner_url) as connection:
                repository = BackupRepository(connection)
                snapshot = await repository.snapshot()
                self._rows = await repository.row_counts()
                self._named = await repository.named_objects()
                self._artifacts = await repository.served_artifacts()
                programs = programs_for(snapshot.server_version)
                with self.writer.writing(DATABASE) as file:
                    async for data in dump(owner_url, programs, snapshot.name):
                        file.write(data)
                        progress(len(data))
            num_rows = sum(self._rows.values())
            step.detail(f"{num_rows} rows of {len(self._rows)} tables, {byte_count(progress.size)}")
        return snapshot

    async def _copy_server(self, owner_url: str, server_version: int) -> None:
        with self.display.step("Base backup") as step, self.writer.writing(BASE) as file:
            progress = ByteProgress(step)
            async for data in base_backup(owner_url, programs_for(server_version)):
                file.write(data)
                progress(len(data))
            step.detail(progress.text)

    async def _explain_missing(self, owner_url: str, copies: ObjectCopies) -> tuple[set[str], dict[str, str]]:
        """Returns what the snapshot names and the backup lacks: what was deleted meanwhile, and what the
        stores do not have although the database still names it, with the reason.
        """
        missing = {key for key in self._named if f"{OBJECTS}{key}" not in self.writer.files}
        unpacked = {digest for digest in self._artifacts if _artifact_name(digest) not in self.writer.files}
        if not missing and not unpacked:
            return set(), {}
        async with open_database(owner_url) as connection:
            repository = BackupRepository(connection)
            still_named = await repository.named_objects()
            still_served = await repository.served_artifacts()
        unavailable = {
            key: copies.damaged.get(key, "the store does not have it")
            for key in missing
            if key in still_named
        } | {
            _artifact_name(digest): "there is no such file in the folder of packed adapters"
            for digest in unpacked & still_served
        }
        return missing - still_named.keys(), unavailable

    @property
    def _artifacts_dir(self) -> Path:
        return Path(setting(self.environment, "ROOTSTOCK_ENGINE_ARTIFACTS_DIR"))


def _artifact_name(digest: str) -> str:
    return artifact_path(Path(ARTIFACTS), digest).as_posix()
