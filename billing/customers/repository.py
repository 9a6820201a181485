"""Queries the sums of several tenants at once. The session's scope is every tenant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

# Each tenant's part is one index range scan. Its latest request is the end of its part of the primary key:
# one step, however much it has used.
_USES = text("""
SELECT t.id, used.requests, used.input_tokens, used.output_tokens,
    CAST(used.cost + charged.cost - taken.cost AS bigint) AS spend,
    (SELECT max(minute) FROM usage_rollups r WHERE r.tenant_id = t.id) AS last_at
FROM unnest(CAST(:tenants AS text[])) AS t(id)
CROSS JOIN LATERAL (
    SELECT CAST(coalesce(sum(num_requests), 0) AS bigint) AS requests,
        CAST(coalesce(sum(prompt_tokens), 0) AS bigint) AS input_tokens,
        CAST(coalesce(sum(completion_tokens), 0) AS bigint) AS output_tokens,
        coalesce(sum(cost), 0) AS cost
    FROM usage_rollup_days WHERE tenant_id = t.id AND day >= :start AND day < :end
) AS used
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cost), 0) AS cost FROM charges
    WHERE tenant_id = t.id AND at >= :start AND at < :end
) AS charged
CROSS JOIN LATERAL (
    SELECT coalesce(sum(cost), 0) AS cost FROM reversals
    WHERE tenant_id = t.id AND at >= :start AND at < :end AND charge_id IS NOT NULL
) AS taken
""")

_TOKENS = text("""
SELECT tenant_id, day, CAST(sum(prompt_tokens + completion_tokens) AS bigint) AS tokens
FROM usage_rollup_days
WHERE tenant_id = ANY(CAST(:tenants AS text[])) AND day >= :start AND day < :end
GROUP BY tenant_id, day
""")


class CustomerSums:
    """Usage sums of the given tenants."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def uses(self, tenant_ids: Sequence[str], start: datetime, end: datetime) -> Sequence[Any]:
        """Returns a row (id, requests, input_tokens, output_tokens, spend, last_at) of each tenant, over
        whole days. `spend` is micro-USD of requests and charges, less reversed charges; `last_at` is the
        minute of the tenant's latest request at any time.
        """
        values = {"tenants": list(tenant_ids), "start": start, "end": end}
        return (await self.session.execute(_USES, values)).all()

    async def tokens_by_day(self, tenant_ids: Sequence[str], start: datetime, end: datetime) -> Sequence[Any]:
        """Returns rows (tenant_id, day, tokens) of the UTC days on which a tenant used any tokens."""
        values = {"tenants": list(tenant_ids), "start": start, "end": end}
        return (await self.session.execute(_TOKENS, values)).all()
