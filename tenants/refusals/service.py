"""Lists and looks up the refused requests of one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from db.session import Database
from tenants.refusals.models import RefusedCall
from tenants.refusals.repository import RefusalRepository, RefusedFilter

MAX_FOUND = 50
"""Calls with the same `x-request-id` that a search returns: clients may repeat one."""
_EVERY = RefusedFilter()


@dataclass(frozen=True, slots=True)
class CodeCount:
    """How many calls were refused with one status and code."""

    status: int
    code: str
    refused: int
    unlisted: int
    """Those of them that have no row: there were too many in a minute."""


class RefusedRequests:
    """Reads the refused calls of one tenant per call. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_id: str,
        start: datetime,
        end: datetime,
        *,
        wanted: RefusedFilter | None = _EVERY,
        before: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> tuple[Sequence[RefusedCall], list[CodeCount]]:
        """Returns the calls in [start, end) below the position `before`, the latest first, and how many were
        refused in the hours of that time range. `wanted`: None lists no calls.
        """
        async with self._database.read(tenant_id) as session:
            rows = RefusalRepository(session, tenant_id)
            calls = () if wanted is None else await rows.page(start, end, wanted, before, limit)
            counts = await rows.counts(start, end)
        return calls, [CodeCount(*row[:2], *map(int, row[2:])) for row in counts]

    async def search(self, tenant_id: str, request_id: str) -> Sequence[RefusedCall]:
        """Returns the calls with this `x-request-id`, the latest first."""
        async with self._database.read(tenant_id) as session:
            return await RefusalRepository(session, tenant_id).of_id(request_id, MAX_FOUND)

    async def call(self, tenant_id: str, at: datetime, request_id: str) -> RefusedCall | None:
        """Returns the call that was refused at that moment, or None."""
        async with self._database.read(tenant_id) as session:
            return await RefusalRepository(session, tenant_id).call(at, request_id)

    async def lately(self, tenant_id: str, now: datetime | None = None) -> int:
        """Returns how many calls were refused within the last 24 hours, to the hour."""
        now = now or datetime.now(UTC)
        async with self._database.read(tenant_id) as session:
            counts = await RefusalRepository(session, tenant_id).counts(now - timedelta(hours=24), now)
        return sum(row.refused for row in counts)
