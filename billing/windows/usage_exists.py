"""Returns zero for a budget of a tenant that used nothing in its window, from one query for many tenants.

A month's first requests come from many tenants at once, and the sums that `billing.window_usage` reads cost
several queries each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from billing.windows.repository import Windows
from db.batch_loader import BatchLoader
from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit
from tenants.quotas import UsageReader


class UsageExists:
    """Reads a budget's sums only if there are any. Pass it as `tenants.quotas.UsageReader`, and `close` it
    at the end.
    """

    def __init__(self, database: Database, sums: UsageReader) -> None:
        self._database = database
        self._sums = sums
        self._used: BatchLoader[tuple[str, datetime], bool] = BatchLoader(self._look_up)

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        """Returns what counts to `limit` since `start`. Raises DatabaseUnavailable."""
        if limit.metric.kind != "ever" and not await self._used.get((tenant_id, start)):
            return 0
        return await self._sums(tenant_id, limit, start)

    async def close(self) -> None:
        await self._used.close()

    async def _look_up(self, windows: Sequence[tuple[str, datetime]]) -> dict[tuple[str, datetime], bool]:
        async with self._database.read(EVERY_TENANT) as session:
            return dict.fromkeys(await Windows(session).used(windows), True)
