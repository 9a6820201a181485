"""Asks for many tenants at once whether anything was used or charged since a moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ARRAY, DateTime, Text, bindparam, text
from sqlalchemy.ext.asyncio import AsyncSession

# Each EXISTS uses an index on the tenant and the time, so the number of rows does not matter.
_USED = text(
    """
    SELECT asked.tenant_id, asked.since FROM unnest(:tenants, :since) AS asked(tenant_id, since)
    WHERE EXISTS (SELECT FROM usage_rollups u WHERE u.tenant_id = asked.tenant_id AND u.minute >= asked.since)
       OR EXISTS (SELECT FROM charges c WHERE c.tenant_id = asked.tenant_id AND c.at >= asked.since)
       OR EXISTS (SELECT FROM reversals r WHERE r.tenant_id = asked.tenant_id AND r.at >= asked.since)
    """
).bindparams(
    bindparam("tenants", type_=ARRAY(Text)), bindparam("since", type_=ARRAY(DateTime(timezone=True)))
)


class Windows:
    """Queries the windows of all tenants. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def used(self, windows: Sequence[tuple[str, datetime]]) -> set[tuple[str, datetime]]:
        """Returns the (tenant_id, since) in which something was used or charged."""
        parameters = {
            "tenants": [tenant_id for tenant_id, _ in windows],
            "since": [since for _, since in windows],
        }
        return {(row.tenant_id, row.since) for row in await self.session.execute(_USED, parameters)}
