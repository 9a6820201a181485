"""Keeps what the list of tenants is sorted by: use and errors of every tenant.

Adding it up takes longer than a page may, so the sums are kept. A view that finds them old gets the old ones,
and has them renewed for the next; only the first view of a process waits. The figures in the list are
always current: only their order can be some seconds old.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from admin.operator.services import OperatorServices
from billing.customers.service import CustomerUse
from db.errors import DatabaseUnavailable
from tenants.operators.directory import TenantFilter

log = structlog.get_logger(__name__)
KEPT_S = 15.0
MAX_TENANTS = 2000
"""As many are compared, the first by name."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all tenants, by id."""

    uses: Mapping[str, CustomerUse]
    """Of the current month."""
    failures: Mapping[str, tuple[int, int]]
    """(requests, failed) of the last days."""


class Ranking:
    """The figures that one process keeps."""

    def __init__(self, operation: OperatorServices, num_days: int) -> None:
        """`num_days`: of the failures."""
        self._directory = operation.directory
        self._customers = operation.customers
        self._failures = operation.failures
        self._num_days = num_days
        self._kept: Figures | None = None
        self._kept_until = 0.0
        self._renewing: asyncio.Task[Figures | None] | None = None

    async def figures(self) -> Figures:
        """Raises DatabaseUnavailable if no figures are kept yet."""
        if self._kept is None:
            return await self._renew()
        if time.monotonic() >= self._kept_until and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew_later(), name="tenant ranking")
        return self._kept

    async def _renew_later(self) -> Figures | None:
        try:
            return await self._renew()
        except DatabaseUnavailable as error:
            log.warning("could not renew the tenants' order", reason=str(error))
            return None

    async def _renew(self) -> Figures:
        now = datetime.now(UTC)
        found, _ = await self._directory.page(TenantFilter(), limit=MAX_TENANTS)
        ids = [row.id for row in found]
        self._kept = Figures(
            await self._customers.month(ids, now), await self._failures.recent(ids, now, self._num_days)
        )
        self._kept_until = time.monotonic() + KEPT_S
        return self._kept
