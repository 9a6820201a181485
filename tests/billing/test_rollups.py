"""The ledger's sums: how any stretch of time is read from them; damage to them is named and mended."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from billing.folding import fold, measure
from billing.months import span
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter, UsageRepository
from billing.rollups import (
    KEYS,
    SUMS,
    RollupBooks,
    RollupDifference,
    hold_ledger,
    rederive,
)
from billing.totals import CostLine, LedgerTotals
from db.rollup_intervals import UNITS, Unit
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage, UsageEvent
from tests.billing.strategies import histories
from tests.support.examples import examples
from tests.support.journal import usage_event
from tests.support.ledger import assert_rollups_are_the_ledgers, forget_ledger, query

DAY = datetime(2026, 11, 30, tzinfo=UTC)
RATE = Rate("prc_1", 3_000_000, 1_000_001, 7_000_000, 175)
MINUTE = timedelta(minutes=1)


async def write(database: Database, *events: UsageEvent) -> None:
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(map(measure, events)))


def event(name: str, minute: float, rate: Rate | None = RATE, **changes: Any) -> UsageEvent:
    made = usage_event(name, submitted_at=(DAY + minute * MINUTE).timestamp(), **changes)
    made.labels.update({RATE_LABEL: rate.label} if rate is not None else {})
    return made


def wide_history() -> Iterator[UsageEvent]:
    """Something every 7 hours and 13 minutes over four days: of two models, projects and keys."""
    for number in range(14):
        labels = {
            "key_id": f"key_{number % 3}",
            "model": f"sapling:m{number % 2}@1",
            "service_tier": "flex" if number % 4 == 0 else "default",
            "project_id": f"proj_{number % 2}",
            "adapter_id": f"adp_{number % 2}",
        }
        yield event(f"r{number}", 433 * number, prompt=10 + number, cached=number, labels=labels)


def overlap(sums: dict[str, int], row: dict[str, Any]) -> None:
    for name in SUMS:
        sums[name] = sums.get(name, 0) + (1 if name == "num_requests" else row[name])


@pytest.mark.parametrize("day", [date(2026, 12, 31), date(2024, 2, 29), date(2026, 1, 1)])
def test_a_month_ends_where_the_next_begins(day: date) -> None:
    start, end = span(day)
    assert start.date() == day.replace(day=1)
    assert end.day == 1
    assert span((end - MINUTE).date())[0] == start


async def test_any_stretch_sums_to_the_rows_in_it(database: Database) -> None:
    """Whatever grains it is read from, by any bucket and group, over the end of a month."""
    await write(database, *wide_history(), event("other", 5, tenant="tnt_b"))
    rows = await query(database, "SELECT * FROM usage_records WHERE tenant_id = 'tnt_a'")
    assert len(rows) == 14
    offsets = (0, 1, 59, 60, 433, 1440, 1441, 2880, 4321, 6000)
    stretches = [(a, b) for a in offsets for b in offsets if a < b]
    groupings: tuple[tuple[str, ...], ...] = ((), ("model",), ("project_id", "service_tier"), KEYS)
    async with database.read("tnt_a") as session:
        usage = UsageRepository(session, "tnt_a")
        for number, (first, last) in enumerate(stretches):
            start, end = DAY + first * MINUTE, DAY + last * MINUTE
            unit = (*UNITS, None)[number % 4]
            group_by = groupings[number % 3 if number % 5 else 3]
            expected: dict[tuple[Any, ...], dict[str, int]] = {}
            for row in rows:
                if start <= row["submitted_at"] < end:
                    key = (_bucket(row["submitted_at"], unit, start), *(row[name] or "" for name in group_by))
                    overlap(expected.setdefault(key, {}), row)
            found = await usage.sums(start, end, unit=unit, group_by=group_by)
            assert {
                (row.bucket, *(getattr(row, name) for name in group_by)): {n: getattr(row, n) for n in SUMS}
                for row in found
            } == expected, (start, end, unit, group_by)


def _bucket(at: datetime, unit: Unit | None, start: datetime) -> datetime:
    if unit is None:
        return start
    cut = {"minute": {}, "hour": {"minute": 0}, "day": {"minute": 0, "hour": 0}}[unit]
    return at.replace(second=0, microsecond=0, **cut)


async def test_filters_are_what_is_in_them(database: Database) -> None:
    await write(database, *wide_history())
    end = DAY + timedelta(days=5)
    async with database.read("tnt_a") as session:
        usage = UsageRepository(session, "tnt_a")

        async def num_requests(**filters: list[str]) -> int:
            rows: list[Any] = await usage.sums(DAY, end, unit=None, group_by=(), **filters)
            return sum(row.num_requests for row in rows)

        assert await num_requests() == 14
        assert await num_requests(key_ids=["key_0"]) == 5
        assert await num_requests(models=["sapling:m0@1"], project_ids=["proj_0"]) == 7
        assert await num_requests(models=["sapling:m0@1"], project_ids=["proj_1"]) == 0
        assert await num_requests(adapter_ids=["adp_0", "adp_1"], service_tiers=["flex"]) == 4
        assert await num_requests(user_ids=["usr_nobody"]) == 0


async def test_lines_add_up_to_the_cost_of_every_request(database: Database) -> None:
    await write(database, *wide_history())
    rows = await query(database, "SELECT * FROM usage_records")
    async with database.read("tnt_a") as session:
        totals = LedgerTotals(session, "tnt_a")
        lines = await totals.costs(DAY, DAY + timedelta(days=5))
        daily = await totals.costs(DAY, DAY + timedelta(days=5), unit="day", group_by=("project_id",))
    assert sum(line.cost for line in lines) == sum(row["cost"] for row in rows) > 0
    assert sum(line.cost for line in daily) == sum(row["cost"] for row in rows)
    assert {line.bucket for line in lines} == {DAY}
    assert {(line.bucket.day, line.project_id) for line in daily} >= {(30, "proj_0"), (1, "proj_1")}
    of_kind = {"input": 0, "cached_input": 0, "output": 0}
    for line in lines:
        of_kind[line.kind] += line.quantity
    assert of_kind == {
        "input": sum(row["prompt_tokens"] - row["cached_tokens"] for row in rows),
        "cached_input": sum(row["cached_tokens"] for row in rows),
        "output": sum(row["completion_tokens"] for row in rows),
    }
    assert lines == sorted(lines, key=lambda line: (line.model, line.service_tier))
    assert all(isinstance(line, CostLine) and line.model and line.service_tier for line in lines)


async def test_sums_that_are_right_have_no_differences(database: Database) -> None:
    await write(database, *wide_history())
    assert await rederive(database, date(2026, 11, 5)) == []
    assert await differences(database, date(2026, 11, 30), date(2026, 12, 5)) == []


async def differences(
    database: Database, first: date = DAY.date(), end: date = DAY.date() + timedelta(days=1)
) -> list[RollupDifference]:
    start, stop = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in (first, end))
    async with database.read(EVERY_TENANT) as session:
        return await RollupBooks(session).differences(start, stop)


DAMAGE = {
    "a sum changed": "UPDATE usage_rollups SET cost = cost + 1 WHERE minute = '2026-11-30T00:00Z'",
    "an hour lost": "DELETE FROM usage_rollup_hours WHERE hour = '2026-11-30T00:00Z'",
    "a day of nobody": "INSERT INTO usage_rollup_days (tenant_id, day, key_id, model, service_tier,"
    " num_requests, prompt_tokens, cached_tokens, completion_tokens) VALUES"
    " ('tnt_x', '2026-11-30T00:00Z', '', 'm', 'default', 1, 2, 0, 3)",
    "another project's": "UPDATE usage_rollup_days SET project_id = 'proj_9' WHERE day = '2026-11-30T00:00Z'"
    " AND project_id = 'proj_0' AND key_id = 'key_0'",
}


async def test_damage_is_named_and_mended_by_the_rows(database: Database) -> None:
    await write(database, *wide_history())
    named: dict[str, list[tuple[Any, ...]]] = {}
    for what, statement in DAMAGE.items():
        async with database.write(EVERY_TENANT) as session:
            assert (await session.execute(text(statement))).rowcount == 1, what  # type: ignore[attr-defined]
        found = await differences(database)
        named[what] = [
            (one.unit, one.tenant_id, one.start, one.expected["num_requests"], one.found["num_requests"])
            for one in found
        ]
        async with database.write(EVERY_TENANT) as session:
            await hold_ledger(session)
            await RollupBooks(session).correct(found)
        assert await differences(database) == []
    assert named == {
        "a sum changed": [("minute", "tnt_a", DAY, 1, 1)],
        "an hour lost": [("hour", "tnt_a", DAY, 1, 0)],
        "a day of nobody": [("day", "tnt_x", DAY, 0, 1)],
        "another project's": [("day", "tnt_a", DAY, 1, 0), ("day", "tnt_a", DAY, 0, 1)],
    }
    # What nobody had is zeros now, which is the same as no row.
    zeros = "DELETE FROM usage_rollup_days WHERE num_requests = 0"
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(zeros))
    await assert_rollups_are_the_ledgers(database)


async def test_months_before_and_after_are_left_alone(database: Database) -> None:
    await write(database, *wide_history())
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE usage_rollups SET cost = cost + 1"))
    november = await rederive(database, date(2026, 11, 1), fix=True)
    assert {one.start.month for one in november} == {11}
    december = await rederive(database, date(2026, 12, 1), until=DAY + timedelta(days=5))
    assert {one.start.month for one in december} == {12}
    assert len(november) + len(december) == 14


def largest(usages: list[Usage]) -> Usage:
    """What a request is billed for: the largest of each count."""
    return Usage(
        max(usage.prompt_tokens for usage in usages),
        max(usage.cached_tokens for usage in usages),
        max(usage.completion_tokens for usage in usages),
    )


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=histories(), random=st.randoms(use_true_random=False))
async def test_a_month_costs_what_its_requests_do_by_the_rates_they_carry(
    database: Database, owner_database: Database, events: list[UsageEvent], random: Any
) -> None:
    """Whatever the order of events: over a month's end, a price change, n > 1, cached prefixes, and requests
    that were cut off or never ended.
    """
    await forget_ledger(owner_database)
    journal = [*events, *random.choices(events, k=3)]
    random.shuffle(journal)
    while journal:
        batch, journal = journal[: (cut := random.randint(1, len(journal)))], journal[cut:]
        await write(database, *batch)
    requests: dict[str, list[UsageEvent]] = {}
    for one in events:
        requests.setdefault(one.request_id, []).append(one)
    for month in (date(2026, 11, 1), date(2026, 12, 1)):
        start, end = span(month)
        for tenant in ("tnt_a", "tnt_b"):
            expected = sum(
                Rate.of_label(one.labels[RATE_LABEL]).cost(largest([each.usage for each in written]))
                for written in requests.values()
                for one in written[:1]
                if one.tenant == tenant
                and RATE_LABEL in one.labels
                and start.timestamp() <= one.submitted_at < end.timestamp()
            )
            async with database.read(tenant) as session:
                lines = await LedgerTotals(session, tenant).costs(start, end)
            assert sum(line.cost for line in lines) == expected
    assert await differences(database, date(2026, 11, 18), date(2026, 12, 2)) == []
