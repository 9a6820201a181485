"""Reconciles the books: compares every book of usage and money with the one before it.

    engines' disks <= journal = ledger = its sums = usage and costs API = invoices;
    ledger = meter events = payment provider;
    invoices = the provider's invoices

A check that cannot run does not hide the others, and every result is stored. Each check is in a module of its
own. Nothing is repaired: a difference needs an operator, or `rederive`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from billing.invoices.verification import InvoiceVerification
from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import PaymentGateway
from billing.reconciliation.deletions import compare_deletions
from billing.reconciliation.differences import CHECKS, NOT_THERE, Difference, Report, outcomes_of
from billing.reconciliation.journal import compare_journal, dead_letters
from billing.reconciliation.ledger import (
    compare_charges,
    compare_prices,
    compare_reports,
    compare_rollups,
    compare_shares,
)
from billing.reconciliation.numbers import NumberComparison
from billing.reconciliation.provider import compare_documents, compare_planning, compare_provider
from billing.reconciliation.repository import ReconciliationRepository
from billing.reconciliation.spools import SpoolComparison
from db.base import new_id
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database

log = structlog.get_logger(__name__)

NIGHTLY_DAYS = 2
"""Whole UTC days of a nightly reconciliation: what is recorded late falls into the second night."""
NIGHTLY_HOUR = 1
"""The UTC hour from which the previous day can be compared."""
MOST_KEPT = 10_000
"""Differences of one reconciliation that are stored as rows; all are counted."""
MOST_NAMED = 200
"""The oldest events on engines' disks that are named; all are counted."""
Check = Callable[[], Awaitable[list[Difference]]]
OnCheck = Callable[[str], Awaitable[None]]


class ReconciliationService:
    """Reconciles the books, every night in a worker and for the operator. `client` must return bytes. Without
    a `gateway` there is no payment provider; without `engines` (their endpoints) no disk is read.
    """

    def __init__(
        self,
        database: Database,
        client: redis.asyncio.Redis,
        gateway: PaymentGateway | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        engines: Sequence[str] = (),
        on_check: OnCheck | None = None,
    ) -> None:
        """`on_check` is called with the name of each check before it runs."""
        self._database = database
        self._redis = client
        self._gateway = gateway
        self._clock = clock
        self._engines = tuple(engines)
        self._on_check = on_check

    async def reconcile(self, start: datetime, end: datetime) -> Report:
        """Compares all books of [start, end), whole UTC days, and stores the result.

        Raises ValueError naming the field, DatabaseUnavailable when the result cannot be stored.
        """
        for name, moment in (("start", start), ("end", end)):
            if moment != moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0):
                raise ValueError(f"{name} must be the beginning of a UTC day")
        if start >= end:
            raise ValueError("end must be after start")
        began = self._clock()
        spools = SpoolComparison(self._database, self._engines, began)
        numbers = NumberComparison(self._database, self._redis, spools, began)
        differences, why_not = await self._compare(self._checks(start, end, began, spools, numbers))
        if spools.why_not:
            why_not["spools"] = spools.why_not
        report = Report(
            new_id("rcn"),
            began,
            self._clock(),
            start,
            end,
            outcomes_of(
                differences,
                why_not,
                {"spools": len(spools.on_their_way), "event_numbers": len(numbers.on_their_way)},
            ),
            len(differences),
            differences,
            [*spools.on_their_way, *numbers.on_their_way][:MOST_NAMED],
        )
        async with self._database.write(EVERY_TENANT) as session:
            await ReconciliationRepository(session).add(report, MOST_KEPT)
        for check, outcome in report.outcomes.items():
            if outcome.differences:
                log.error("books differ", check=check, differences=outcome.differences, report_id=report.id)
        return report

    async def reconcile_if_due(self) -> Report | None:
        """Runs the nightly reconciliation; returns None if it already ran or it is too early. Raises
        DatabaseUnavailable.
        """
        now = self._clock()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        night = today + timedelta(hours=NIGHTLY_HOUR)
        if now < night:
            return None
        async with self._database.write(EVERY_TENANT) as session:
            repository = ReconciliationRepository(session)
            if not await repository.take_turn() or await repository.was_made(night, today):
                return None
            # The lock is held while the checks run in sessions of their own.
            return await self.reconcile(today - timedelta(days=NIGHTLY_DAYS), today)

    async def latest(self) -> Report | None:
        """Returns the latest report, without its differences. Raises DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            return await ReconciliationRepository(session).latest()

    async def page(self, *, after: str | None = None, limit: int = 30) -> list[Report]:
        """Returns reports, the newest first, without their differences. Raises DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            return await ReconciliationRepository(session).page(after=after, limit=limit)

    async def find(self, reconciliation_id: str) -> Report | None:
        """Returns a report with its differences. Raises DatabaseUnavailable."""
        async with self._database.read(EVERY_TENANT) as session:
            return await ReconciliationRepository(session).find(reconciliation_id)

    def _checks(
        self,
        start: datetime,
        end: datetime,
        now: datetime,
        spools: SpoolComparison,
        numbers: NumberComparison,
    ) -> dict[str, Check]:
        database, gateway = self._database, self._gateway
        checks: dict[str, Check] = {
            "journal": lambda: compare_journal(database, self._redis, now),
            "spools": spools.compare,
            "event_numbers": lambda: numbers.compare(start, end),
            "dead_letters": lambda: dead_letters(self._redis),
            "prices": lambda: compare_prices(database, start, end),
            "charges": lambda: compare_charges(database, start, end, now),
            "rollups": lambda: compare_rollups(database, start, end),
            "shares": lambda: compare_shares(database, start, end),
            "deletions": lambda: compare_deletions(database, now),
            "usage_api": lambda: compare_reports(database, start, end),  # and costs_api
            "invoices": self._compare_invoices,
            "meter_events": lambda: compare_planning(database, now),
        }
        if not self._engines:
            del checks["spools"]
        if gateway is not None:
            checks["stripe"] = lambda: compare_provider(database, gateway, start, end, now)
            checks["stripe_invoices"] = lambda: compare_documents(database, gateway, start, end, now)
        return checks

    async def _compare(self, checks: Mapping[str, Check]) -> tuple[list[Difference], dict[str, str]]:
        """Returns the differences, and the reason for each check that did not run."""
        found: list[Difference] = []
        absent = {
            "stripe": "payment provider",
            "stripe_invoices": "payment provider",
            "spools": "engine to ask",
        }
        why_not = {name: NOT_THERE + what for name, what in absent.items() if name not in checks}
        for name, check in checks.items():
            if self._on_check is not None:
                await self._on_check(name)
            try:
                found += await check()
            except (DatabaseUnavailable, RedisError, ProviderUnavailable, ProviderRefused) as error:
                log.error("books cannot be compared", source=name, error=str(error))
                why_not[name] = str(error)
        if "usage_api" in why_not:
            why_not["costs_api"] = why_not["usage_api"]
        order = list(CHECKS)
        return sorted(found, key=lambda one: order.index(one.check)), why_not

    async def _compare_invoices(self) -> list[Difference]:
        return [
            Difference("invoices", one.tenant_id, f"{one.invoice}: {one.what}", None, one.expected, one.found)
            for one in await InvoiceVerification(self._database).verify()
        ]
