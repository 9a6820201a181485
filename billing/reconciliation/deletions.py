"""Compares deletions with the object store: names objects that should have been deleted long ago."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing.reconciliation.differences import Difference
from db.session import EVERY_TENANT, Database
from tenants.retention.repository import RetentionInventory

OVERDUE = timedelta(hours=24)
MOST_NAMED = 1000


async def compare_deletions(database: Database, now: datetime) -> list[Difference]:
    """Returns a difference for each object that has been owed for longer than a day. Raises
    DatabaseUnavailable.
    """
    async with database.read(EVERY_TENANT) as session:
        overdue = await RetentionInventory(session).owed_before(now - OVERDUE, MOST_NAMED)
    return [
        Difference(
            "deletions",
            owed.tenant_id,
            f"object {owed.object_key} of deletion {owed.deletion_id}: {owed.error or 'not tried yet'}",
            owed.owed_since,
            0,
            1,
        )
        for owed in overdue
    ]
