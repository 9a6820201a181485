"""Nothing, for a budget of a tenant that has used nothing in its window: known of many in one query.

Owns telling those apart from the others, whose sums somebody else knows. A month's first requests come from
many tenants at once, and sums cost several queries each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from billing.windows.repository import Windows
from db.batch_loader import BatchLoader
from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit
from tenants.quotas import Seed


class UsageExists:
    """Call it as `tenants.quotas.Seed`; `sums` is called for those who have used something. `close` it at the
    end.
    """

    def __init__(self, database: Database, sums: Seed) -> None:
        self._database = database
        self._sums = sums
        self._begun: BatchLoader[tuple[str, datetime], bool] = BatchLoader(self._look_up)

    async def __call__(self, tenant_id: str, limit: Limit, start: datetime) -> int:
        """Raises DatabaseUnavailable."""
        if limit.metric.kind != "ever" and not await self._begun.get((tenant_id, start)):
            return 0
        return await self._sums(tenant_id, limit, start)

    async def close(self) -> None:
        await self._begun.close()

    async def _look_up(self, windows: Sequence[tuple[str, datetime]]) -> dict[tuple[str, datetime], bool]:
        async with self._database.read(EVERY_TENANT) as session:
            return dict.fromkeys(await Windows(session).begun(windows), True)
