"""Compares the ledger with itself: prices on records, charges, sums, and what the APIs report.

What takes several statements is read while records are not written: for one tenant at a time, which takes
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.charges import ChargeBook, storage_charges
from billing.earnings import EarningsBook
from billing.reconciliation.differences import Difference
from billing.reconciliation.repository import BooksRepository, DayTotals
from billing.repository import PriceList
from billing.rollups import RollupBooks, RollupDifference, hold_ledger
from billing.service import UsageReports
from db.session import EVERY_TENANT, Database

DAY = timedelta(days=1)
CHARGED_WITHIN = timedelta(hours=2)
"""The time from a day's end, or a job's, until it must be charged."""
MOST_MISPRICED = 10_000
_MOST_BUCKETS = 31
_USAGE_FIELDS = {
    "num_requests": "num_model_requests",
    "prompt_tokens": "input_tokens",
    "cached_tokens": "input_cached_tokens",
    "completion_tokens": "output_tokens",
}


async def compare_prices(database: Database, start: datetime, end: datetime) -> list[Difference]:
    """Compares records in [start, end) with the price list. Raises DatabaseUnavailable."""
    async with database.read(EVERY_TENANT) as session:
        rows = await BooksRepository(session).mispriced(start, end, MOST_MISPRICED)
    return [
        Difference(
            "prices",
            row.tenant_id,
            f"{row.name} of {row.request_id}",
            row.submitted_at,
            row.expected,
            row.found,
        )
        for row in rows
    ]


async def compare_charges(
    database: Database, start: datetime, end: datetime, now: datetime
) -> list[Difference]:
    """Compares stored bytes and finished jobs with the charges. Raises DatabaseUnavailable."""
    found: list[Difference] = []
    long_ago = now - CHARGED_WITHIN
    async with database.read(EVERY_TENANT) as session:
        books, book, prices = BooksRepository(session), ChargeBook(session), PriceList(session)
        day = start
        uncharged = {
            datetime(one.year, one.month, one.day, tzinfo=UTC)
            for one in await books.uncharged_days(start, end)
        }
        while day + DAY <= min(end, long_ago):
            if day in uncharged:
                found.append(Difference("charges", "", "storage is charged", day, 1, 0))
            else:
                price = await prices.in_effect(day)
                charges = []
                if price is not None and price.adapter_gb_day:
                    charges = storage_charges(await book.stored(day, day + DAY), day, price)
                expected = {charge.id: (charge.tenant_id, charge.cost) for charge in charges}
                found += _charged(day, expected, await books.storage_charges(day))
            day += DAY
        found += [
            Difference(
                "charges", job.tenant_id, f"calibration {job.job_id} is charged", job.finished_at, 1, 0
            )
            for job in await books.calibrations_due(long_ago)
        ]
    return found


def _charged(
    day: datetime, expected: Mapping[str, tuple[str, int]], found: Mapping[str, tuple[str, int]]
) -> list[Difference]:
    nothing = ("", 0)
    return [
        Difference("charges", (expected.get(one) or found[one])[0], f"micro-USD of {one}", day, due, charged)
        for one in sorted(expected.keys() | found.keys())
        for due, charged in [(expected.get(one, nothing)[1], found.get(one, nothing)[1])]
        if due != charged
    ]


async def compare_rollups(database: Database, start: datetime, end: datetime) -> list[Difference]:
    """Compares the three rollups with the rows, a day at a time. Raises DatabaseUnavailable."""
    found: list[Difference] = []
    day = start
    while day < end:
        async with database.read(EVERY_TENANT) as session:
            differences = await RollupBooks(session).differences(day, min(day + DAY, end))
        found += [one for difference in differences for one in _rollup(difference)]
        day += DAY
    return found


def _rollup(difference: RollupDifference) -> list[Difference]:
    of = " ".join(f"{name}={value}" for name, value in difference.key.items() if value)
    return [
        Difference(
            "rollups",
            difference.tenant_id,
            f"{name} of the {difference.unit}, {of}",
            difference.start,
            expected,
            difference.found[name],
        )
        for name, expected in difference.expected.items()
        if expected != difference.found[name]
    ]


async def compare_shares(database: Database, start: datetime, end: datetime) -> list[Difference]:
    """Compares what owners of shared adapters earned with the users' rows, priced again. Raises
    DatabaseUnavailable.
    """
    async with database.read(EVERY_TENANT) as session:
        found = await EarningsBook(session).differences(start, end)
    return [
        Difference(
            "shares",
            one.owner_id,
            f"{one.name} of {one.share_id}, {one.model}",
            one.day,
            one.expected,
            one.found,
        )
        for one in found
    ]


async def compare_reports(database: Database, start: datetime, end: datetime) -> list[Difference]:
    """Compares the reports of [start, end), whole UTC days, with the tenants' rows. Raises
    DatabaseUnavailable.
    """
    reports = UsageReports(database)
    async with database.read(EVERY_TENANT) as session:
        tenants = await BooksRepository(session).active_tenants(start, end)
    found: list[Difference] = []
    for tenant_id in tenants:
        first = start
        while first < end:
            last = min(first + _MOST_BUCKETS * DAY, end)
            found += await _reports_of(database, reports, tenant_id, first, last)
            first = last
    return found


async def _reports_of(
    database: Database, reports: UsageReports, tenant_id: str, start: datetime, end: datetime
) -> list[Difference]:
    span: dict[str, Any] = {
        "start_time": round(start.timestamp()),
        "end_time": round(end.timestamp()),
        "limit": _MOST_BUCKETS,
    }
    async with database.read(EVERY_TENANT) as session:
        await hold_ledger(session)
        rows = await BooksRepository(session).days(tenant_id, start, end)
        usage = await reports.completions(tenant_id, **span)
        costs = await reports.costs.page(tenant_id, **span)
    reported = {_day(bucket): bucket["results"] for bucket in usage["data"]}
    charged = {_day(bucket): bucket["results"] for bucket in costs["data"]}
    found: list[Difference] = []
    for day in sorted(rows.keys() | reported.keys() | charged.keys()):
        totals = rows.get(day) or DayTotals(day, dict.fromkeys([*_USAGE_FIELDS, "cost"], 0), 0)
        pairs = [
            ("usage_api", name, totals.sums[name], _sum(reported.get(day, ()), field))
            for name, field in _USAGE_FIELDS.items()
        ]
        cost = totals.sums["cost"] + totals.charged
        pairs.append(("costs_api", "micro-USD", cost, _sum(charged.get(day, ()), "amount_micro_usd")))
        found += [
            Difference(check, tenant_id, f"{name} of the day", day, expected, shown)
            for check, name, expected, shown in pairs
            if expected != shown
        ]
    return found


def _day(bucket: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(bucket["start_time"], UTC)


def _sum(results: Sequence[Mapping[str, Any]], field: str) -> int:
    return sum(result[field] for result in results)
