"""Closes months: once a month is over and all its usage is in the ledger, every tenant gets its invoice.

A month is closed on a day of the next month (ROOTSTOCK_INVOICE_CLOSE_DAY), as soon as the engines' journal
holds nothing written before the month's end. Events that stay on an engine's disk longer than that are
recorded late, and are on the next invoice. Each tenant's invoice is a transaction of its own: closing
continues where it was killed, and repeating it changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import redis.asyncio
import structlog

from billing.invoices.repository import MonthRepository
from billing.invoices.service import InvoiceService
from billing.months import begin, following, month_of
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM
from tenants.repository import TenantDirectory

log = structlog.get_logger(__name__)

OldestEntry = Callable[[], Awaitable[datetime | None]]
"""Returns when the oldest entry that is not in the ledger was written; None if there is none."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The result of one round."""

    months: tuple[date, ...] = ()
    waiting_for: datetime | None = None
    """The time of a journal entry that keeps a due month open until the ledger has it."""


class JournalAge:
    """Reads the age of the journal's oldest entry, whose id begins with Unix milliseconds. Pass it as
    `OldestEntry`.
    """

    def __init__(self, redis_client: redis.asyncio.Redis, stream: str = JOURNAL_STREAM) -> None:
        self._redis = redis_client
        self._stream = stream

    async def __call__(self) -> datetime | None:
        """Returns the time of the oldest entry. Raises RedisError."""
        entries: list[tuple[bytes, object]] = await self._redis.xrange(self._stream, count=1)  # type: ignore[assignment]
        if not entries:
            return None
        milliseconds = int(entries[0][0].partition(b"-")[0])
        return datetime.fromtimestamp(milliseconds / 1000, UTC)


class MonthClose:
    """Closes months when they are due. Workers call it repeatedly."""

    def __init__(self, database: Database, invoices: InvoiceService, oldest_entry: OldestEntry) -> None:
        self._database = database
        self._invoices = invoices
        self._oldest_entry = oldest_entry

    async def close_due(self, now: datetime) -> Closed:
        """Closes every due month, the earliest first.

        Raises DatabaseUnavailable, RedisError.
        """
        closed: list[date] = []
        month = await self._next()
        while month is not None and self._due(month) <= now:
            oldest = await self._oldest_entry()
            if oldest is not None and oldest < begin(following(month)):
                return Closed(tuple(closed), oldest)
            count = await self._close(month, now)
            log.info("month is closed", month=f"{month:%Y-%m}", invoices=count)
            closed.append(month)
            month = following(month)
        return Closed(tuple(closed))

    def _due(self, month: date) -> datetime:
        return begin(following(month)) + timedelta(days=self._invoices.settings.close_day - 1)

    async def _next(self) -> date | None:
        """Returns the first month that is not closed; None while there is no tenant to invoice."""
        async with self._database.read(EVERY_TENANT) as session:
            months = MonthRepository(session)
            last = await months.last_closed()
            if last is not None:
                return following(last)
            earliest = await months.earliest()
        return None if earliest is None else month_of(earliest)

    async def _close(self, month: date, now: datetime) -> int:
        async with self._database.read(EVERY_TENANT) as session:
            tenants = [tenant.id for tenant in await TenantDirectory(session).tenants()]
        for tenant_id in tenants:
            await self._invoices.finalize(tenant_id, month, now=now)
        async with self._database.write(EVERY_TENANT) as session:
            months = MonthRepository(session)
            count = await months.num_invoices(month)
            await months.close(month, now, count)
        return count
