"""Counts the failed requests of several tenants side by side, for the operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from db.session import EVERY_TENANT, Database
from sla.repository import CrossTenantCounts


class FailureCounts:
    """Reads the daily sums."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def recent(
        self, tenant_ids: Sequence[str], now: datetime, num_days: int
    ) -> dict[str, tuple[int, int]]:
        """Returns (requests, failed) of the last `num_days` UTC days, the current one included, by tenant;
        tenants without requests are left out. Raises DatabaseUnavailable.
        """
        if not tenant_ids:
            return {}
        today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        async with self._database.read(EVERY_TENANT) as session:
            found = await CrossTenantCounts(session).failures(
                tenant_ids, today - timedelta(days=num_days - 1)
            )
        return {id: (requests, failed) for id, requests, failed in found}
