"""Deletes the oldest entries of an organization's audit log when their period is over.

Entries are a hash chain, so they go from its beginning only: the head notes the digest of the last entry that
went, from which the rest is proved.
"""

from __future__ import annotations

from db.session import Database
from retention.periods import periods_of
from tenants.audit.repository import AuditRepository
from tenants.retention.classes import DataClass, RetentionBounds
from tenants.retention.repository import DeletionRepository

TABLE = "audit_log"


async def prune_audit_entries(
    database: Database, tenant_id: str, bounds: RetentionBounds, slice_rows: int, max_slices: int
) -> int:
    """Deletes entries, in slices of one transaction each; returns how many. Raises DatabaseUnavailable."""
    total = 0
    for _ in range(max_slices):
        num = await _slice(database, tenant_id, bounds, slice_rows)
        total += num
        if num < slice_rows:
            break
    return total


async def _slice(database: Database, tenant_id: str, bounds: RetentionBounds, limit: int) -> int:
    async with database.write(tenant_id) as session:
        periods = await periods_of(session, tenant_id, bounds)
        before = periods.cutoff(DataClass.AUDIT_LOG)
        # A hold on one object keeps its entries, and so every later one.
        if before is None or periods.holds.of_class(DataClass.AUDIT_LOG) or periods.holds.by_object:
            return 0
        deletions, entries = DeletionRepository(session, tenant_id), AuditRepository(session, tenant_id)
        if not await entries.oldest_before(before, 1):
            return 0
        deletion = await deletions.open_periods()
        found = await entries.oldest_before(before, limit)
        if not found:
            return 0
        await entries.prune(found[-1].seq)
        span = (min(entry.at for entry in found), max(entry.at for entry in found))
        ids = [entry.id for entry in found]
        await deletions.count(deletion.id, TABLE, DataClass.AUDIT_LOG, len(found), ids, span)
        periods.note(deletion, DataClass.AUDIT_LOG)
        return len(found)
