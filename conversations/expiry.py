"""Deletes responses and conversations for good when their time to live is over."""

from __future__ import annotations

from conversations.repository import ExpiredState
from db.session import EVERY_TENANT, Database

BATCH = 500
"""Rows of one transaction."""
MAX_BATCHES = 200
"""Of one run; the rest is left to the next."""


async def delete_expired(database: Database) -> int:
    """Deletes what has expired, and everything of organizations that store nothing; returns how many rows.
    Runs at the same time share the work. Raises DatabaseUnavailable.
    """
    total = 0
    for _ in range(MAX_BATCHES):
        async with database.write(EVERY_TENANT) as session:
            deleted = await ExpiredState(session).delete(BATCH)
        total += deleted
        if not deleted:
            break
    return total
