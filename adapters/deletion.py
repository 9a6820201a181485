"""Deletes adapters: out of service at once, out of the stores after a grace period.

An adapter's own row is kept for good, because usage refers to it, and so are its events. Artifacts are shared
by equal weights: one is removed with the last version, of any tenant, that needs it. Running requests finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import redis.asyncio
import structlog

from adapters import events
from adapters.announcer import Announcer
from adapters.bases import Bases
from adapters.errors import AdapterNotFound
from adapters.jobs.models import JobStatus
from adapters.jobs.repository import JobRepository
from adapters.jobs.service import finish
from adapters.models import Adapter, AdapterVersion
from adapters.object_keys import adapter_of, adapter_prefix, is_source
from adapters.pinning import Pinning
from adapters.published_artifacts.publishing import withdraw
from adapters.repository import AdapterDirectory, AdapterRepository
from adapters.sharing.repository import OwnShares
from adapters.storage.objects import ObjectStore
from db.session import EVERY_TENANT, Database, WriteSession
from engine.lora.artifact import artifact_path
from engine.lora.draft_adapters import remove_note
from engine.lora.signatures import signature_path
from engine.protocol import AdapterRef
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.retention.classes import DataClass
from tenants.retention.holds import holds_of, require_no_hold
from tenants.retention.repository import DeletionRepository
from tenants.retention.requests import record_request

log = structlog.get_logger(__name__)

GRACE = timedelta(minutes=10)
"""Time for which running requests may still need a deleted adapter's weights."""
ORPHAN_AGE = timedelta(hours=1)
"""Longer than a request takes from copying files to its commit."""
PAGE = 100
_VERSIONS = AdapterVersion.__tablename__


class AdapterDeletion:
    """Takes tenants' adapters out of service."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        bases: Bases,
        pinning: Pinning | None = None,
    ) -> None:
        self._database = database
        self._announcer = Announcer(redis_client, pinning)
        self._bases = bases

    async def delete(self, tenant_id: str, adapter: str, *, by: Actor = SYSTEM) -> Adapter:
        """Takes an adapter out of service permanently. Its name is free at once, running requests finish, its
        jobs stop; `purge_deleted` removes what is stored. Raises AdapterNotFound, OnLegalHold.
        """
        name = self._bases.reference(adapter)
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            found = await repository.find_with_version(self._bases, name)
            if found is None:
                raise AdapterNotFound(adapter)
            # Jobs before adapters: the order in which workers lock them.
            jobs = await JobRepository(session, tenant_id).open_jobs_of(found[0].id, None)
            row = await repository.lock(name)
            if row is None:
                raise AdapterNotFound(adapter)
            what = f"adapter {row.name}"
            await require_no_hold(session, tenant_id, what, DataClass.ADAPTER_SOURCES, row.id)
            now = datetime.now(UTC)
            for job in jobs:
                finish(job, JobStatus.CANCELLED)  # its worker finds its lease lost
            before = [
                AdapterRef(digest, rank)
                for digest, rank in await repository.mark_deleting(row.id)
                if digest is not None and rank is not None
            ]
            for share in await OwnShares(session, tenant_id).end_all(row.id, now):
                self._announcer.changed(session, share.recipient_id)
            row.deleted_at, row.active_version, row.previous_version = now, None, None
            events.record(session, tenant_id, row.id, "adapter.deleted", f"Adapter {row.name} was deleted.")
            self._announcer.serves(session, row, before=before)
            # `purge_deleted` ends it, when nothing is stored any more.
            await record_request(session, tenant_id, by, ("adapter", row.id), (), is_done=False)
            await AuditLog.record(
                session, tenant_id, by, "adapter.deleted", ("adapter", row.id), {"name": row.name}
            )
        return row


async def purge_deleted(
    database: Database,
    store: ObjectStore,
    artifacts_dir: Path,
    now: datetime,
    *,
    grace: timedelta = GRACE,
    limit: int = PAGE,
) -> int:
    """Removes what is stored of adapters deleted longer than `grace` ago; returns how many. Raises
    StorageUnavailable, DatabaseUnavailable.

    Rows go last, so that after any interruption the next run continues.
    """
    async with database.read(EVERY_TENANT) as session:
        deleted = await AdapterDirectory(session).deleted_before(now - grace, limit=limit)
    for adapter in deleted:
        if await _is_held(database, adapter):
            continue
        async with database.read(adapter.tenant_id) as session:
            versions = await AdapterRepository(session, adapter.tenant_id).versions(adapter.id)
        removed = []
        async for stored in store.list(adapter_prefix(adapter.tenant_id, adapter.id).rstrip("/")):
            await store.delete(stored.key)
            removed.append(stored.key)
        for digest in sorted({digest for version in versions for digest in _digests(version)}):
            await _drop_artifact(database, store, artifacts_dir, digest, now - grace)
        async with database.write(adapter.tenant_id) as session:
            await AdapterRepository(session, adapter.tenant_id).forget_versions(adapter.id)
            await _note_purged(session, adapter, versions, removed)
        log.info("deleted adapter purged", tenant_id=adapter.tenant_id, adapter_id=adapter.id)
    return len(deleted)


async def _is_held(database: Database, adapter: Adapter) -> bool:
    """Returns whether a hold was placed after the adapter's deletion was requested."""
    async with database.write(adapter.tenant_id) as session:
        holds = await holds_of(session, adapter.tenant_id)
    return bool(holds.of_class(DataClass.ADAPTER_SOURCES) or holds.by_object.get(adapter.id))


async def _note_purged(
    session: WriteSession, adapter: Adapter, versions: Sequence[AdapterVersion], removed: Sequence[str]
) -> None:
    """Counts what is gone in the deletion that was requested, of the adapter or of its organization."""
    deletions = DeletionRepository(session, adapter.tenant_id)
    requested = await deletions.open("request", adapter.id)
    deletion = requested or await deletions.open("organization")
    if deletion is None:
        return  # of an adapter that was deleted before there were certificates
    ids = [f"{adapter.id}@{version.version}" for version in versions]
    if ids:
        await deletions.count(deletion.id, _VERSIONS, None, len(ids), ids)
    # What is owed is counted when it is settled.
    num_objects = len(removed) - await deletions.num_owed_of(removed)
    if num_objects:
        await deletions.add_objects(deletion.id, _VERSIONS, num_objects)
    if requested is not None:
        await deletions.finish(requested)


def _digests(version: AdapterVersion) -> set[str]:
    """Returns the digests of every artifact packed for the version."""
    packed = {artifact["digest"] for artifact in version.artifacts.values() if artifact.get("digest")}
    return packed | ({version.digest} if version.digest is not None else set())


async def _drop_artifact(
    database: Database, store: ObjectStore, artifacts_dir: Path, digest: str, before: datetime
) -> None:
    """Removes file and published object unless a version needs them, or another job has packed the same
    weights since `before` and may be about to name them.
    """
    async with database.read(EVERY_TENANT) as session:
        needed = await AdapterDirectory(session).is_needed(digest)
    if not needed:
        await asyncio.to_thread(_unlink_older, artifact_path(artifacts_dir, digest), before)
        await asyncio.to_thread(_unlink_older, signature_path(artifacts_dir, digest), before)
        if not await asyncio.to_thread(artifact_path(artifacts_dir, digest).exists):
            drafter = await asyncio.to_thread(remove_note, artifacts_dir, digest)
            if drafter is not None:
                await _drop_artifact(database, store, artifacts_dir, drafter, before)
        await withdraw(store, digest, before)


async def sweep_copies(database: Database, store: ObjectStore, now: datetime) -> int:
    """Removes objects of adapters that no row names: copies whose transaction failed. Only those older than
    `ORPHAN_AGE`; returns how many. Raises StorageUnavailable, DatabaseUnavailable.
    """
    num_removed = 0
    keys: list[str] = []
    async for stored in store.list("tenants"):
        if stored.modified_at < now - ORPHAN_AGE and stored.key.split("/")[2:3] == ["adapters"]:
            keys.append(stored.key)
        if len(keys) == PAGE:
            num_removed += await _remove_orphans(database, store, keys)
            keys = []
    return num_removed + await _remove_orphans(database, store, keys)


async def _remove_orphans(database: Database, store: ObjectStore, keys: list[str]) -> int:
    """Removes objects without a row: a source is named by its version or job, anything else by its
    adapter.
    """
    owners = {key: adapter_of(key) for key in keys}
    async with database.read(EVERY_TENANT) as session:
        known = await AdapterDirectory(session).named_by_rows(set(owners.values()))
    orphans = [
        key
        for key, adapter_id in owners.items()
        if adapter_id not in known or (is_source(key) and key not in known[adapter_id])
    ]
    for key in orphans:
        await store.delete(key)
    return len(orphans)


def _unlink_older(path: Path, before: datetime) -> None:
    try:
        if path.stat().st_mtime < before.timestamp():
            path.unlink()
    except FileNotFoundError:
        pass
