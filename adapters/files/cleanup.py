"""Ends expired uploads, and removes parts of ended uploads and objects without a row.

Rows go first where a request could still find them, objects first where the row is how they are found again.
After an interruption the next run continues; concurrent runs do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from adapters.files.repository import FileInventory
from adapters.storage.objects import ObjectStore
from db.session import EVERY_TENANT, Database

ORPHAN_AGE = timedelta(hours=1)
"""An object's row is written within seconds; after this long, the process that should write it has died."""
_BATCH = 500


@dataclass(slots=True)
class SweepReport:
    expired_uploads: int = 0
    parts: int = 0
    orphans: int = 0
    partial_files: int = 0
    """Files left on this machine by interrupted transfers."""


async def sweep(database: Database, store: ObjectStore, now: datetime) -> SweepReport:
    """Removes what is no longer needed. Raises StorageUnavailable, DatabaseUnavailable; earlier removals
    stay.
    """
    report = SweepReport()
    async with database.write(EVERY_TENANT) as session:
        report.expired_uploads = await FileInventory(session).expire_uploads(now)
    await _dead_parts(database, store, report)
    await _orphans(database, store, now - ORPHAN_AGE, report)
    report.partial_files = await store.sweep(now - ORPHAN_AGE)
    return report


async def _dead_parts(database: Database, store: ObjectStore, report: SweepReport) -> None:
    while True:
        async with database.read(EVERY_TENANT) as session:
            parts = await FileInventory(session).dead_parts(_BATCH)
        for part in parts:
            await store.delete(part.object_key)
        async with database.write(EVERY_TENANT) as session:
            await FileInventory(session).delete_parts([part.id for part in parts])
        report.parts += len(parts)
        if len(parts) < _BATCH:
            return


async def _orphans(database: Database, store: ObjectStore, before: datetime, report: SweepReport) -> None:
    """Removes orphans in `tenants/{tenant}/files` and `uploads`; other code cleans up other objects of
    tenants.
    """
    old: list[str] = []
    async for stored in store.list("tenants"):
        if stored.modified_at < before and stored.key.split("/")[2] in ("files", "uploads"):
            old.append(stored.key)
        if len(old) == _BATCH:
            report.orphans += await _remove_without_row(database, store, old)
            old = []
    report.orphans += await _remove_without_row(database, store, old)


async def _remove_without_row(database: Database, store: ObjectStore, keys: list[str]) -> int:
    async with database.read(EVERY_TENANT) as session:
        orphans = await FileInventory(session).without_file(keys)
    for key in orphans:
        await store.delete(key)
    return len(orphans)
