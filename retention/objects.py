"""Deletes objects whose rows are gone from the object store, and keeps owing those that it does not
delete.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from adapters.storage import StorageUnavailable
from adapters.storage.objects import ObjectStore
from db.session import EVERY_TENANT, Database
from tenants.retention.repository import DeletionRepository, RetentionInventory

log = structlog.get_logger(__name__)

AT_ONCE = 200
MAX_ROUNDS = 50
LONGEST_WAIT = timedelta(hours=1)


async def delete_owed_objects(database: Database, store: ObjectStore) -> int:
    """Deletes objects that are owed; returns how many. What the store does not delete stays owed and is tried
    again later. Raises DatabaseUnavailable.
    """
    total = 0
    for _ in range(MAX_ROUNDS):
        async with database.read(EVERY_TENANT) as session:
            due = await RetentionInventory(session).due_objects(AT_ONCE)
        for place, owed in enumerate(due):
            try:
                await store.delete(owed.object_key)
            except StorageUnavailable as error:
                await _put_off(database, [one.id for one in due[place:]], str(error))
                log.warning("objects are deleted later", owed=len(due) - place, error=str(error))
                return total
            async with database.write(owed.tenant_id) as session:
                await DeletionRepository(session, owed.tenant_id).settle([owed.id])
            total += 1
        if len(due) < AT_ONCE:
            break
    return total


async def _put_off(database: Database, owed_ids: list[str], error: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        await RetentionInventory(session).put_off(owed_ids, error, LONGEST_WAIT)
