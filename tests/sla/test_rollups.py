"""Hours and days of service levels: whatever stretch is asked for comes to what its minutes come to; damage
to them is named and mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from sla.granularity import GRANULARITIES
from sla.incidents.repository import ServedToAll
from sla.measures import Counts
from sla.repository import SlaRepository, SlaWriter
from sla.rollups import rederive
from tests.support.examples import examples

START = datetime(2026, 4, 29, tzinfo=UTC)
"""Three days, in which a month ends."""
NIGHT = START + timedelta(hours=44)
AN_HOUR, A_MINUTE = timedelta(hours=1), timedelta(minutes=1)
SPAN = (START, START + timedelta(days=3))
TENANTS, TIERS = ("tnt_a", "tnt_b"), ("priority", "default", "flex")

offsets = st.one_of(st.integers(0, 3 * 1440), st.sampled_from((1439, 1440, 2880, 2881, 2940)))
instants = st.builds(
    lambda minute, micros: START + minute * A_MINUTE + timedelta(microseconds=micros),
    offsets,
    st.sampled_from((0, 0, 0, 1, 59_999_999)),
)
Seen = tuple[str, str, int, bool, float]
"""Tenant, class, minute, whether it failed, seconds to its first token."""
requests = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(TIERS),
        offsets,
        st.booleans(),
        st.sampled_from((0.001, 0.08, 3.0, 2000.0)),
    ),
    max_size=30,
)


def counted(seen: Iterable[Seen]) -> dict[tuple[str, str, datetime], Counts]:
    found: dict[tuple[str, str, datetime], Counts] = {}
    for tenant, tier, minute, failed, seconds in seen:
        counts = found.setdefault((tenant, tier, START + minute * A_MINUTE), Counts())
        counts.requests += 1
        counts.failed += failed
        if not failed:
            counts.first_token(seconds, 0.5)
            counts.output_rate(1 / seconds, 20.0)
    return found


async def keep(database: Database, seen: Iterable[Seen]) -> None:
    async with database.write(EVERY_TENANT) as session:
        await SlaWriter(session).add(counted(seen))


async def forget(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        for granularity in GRANULARITIES:
            await session.execute(text(f"DELETE FROM {granularity.table}"))


@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests, st.lists(st.tuples(instants, instants), min_size=1, max_size=3), st.integers(0, 30))
async def test_any_stretch_comes_to_its_minutes(
    database: Database, seen: list[Seen], stretches: list[tuple[datetime, datetime]], cut: int
) -> None:
    """However the requests came in batches, over the end of a month."""
    await forget(database)
    for batch in (seen[:cut], seen[cut:]):
        await keep(database, batch)
    minutes = counted(seen)
    for tenant in TENANTS:
        async with database.read(tenant) as session:
            repository = SlaRepository(session, tenant)
            for start, end in stretches:
                expected: dict[str, Counts] = {}
                for (whose, tier, minute), counts in minutes.items():
                    if whose == tenant and start <= minute < end:
                        expected.setdefault(tier, Counts()).add(counts)
                assert await repository.totals(start, end) == expected
            since, until = [start for start, _ in stretches], max(end for _, end in stretches)
            found = await repository.shares(since, until)
    theirs = {place: counts for place, counts in minutes.items() if place[0] == tenant}
    assert found == shares(theirs, since, until)
    async with database.read(EVERY_TENANT) as session:
        assert await ServedToAll(session).shares(since, until) == shares(minutes, since, until)
    assert await rederive(database, *SPAN) == []


def shares(
    minutes: dict[tuple[str, str, datetime], Counts], since: list[datetime], until: datetime
) -> list[dict[str, tuple[int, int]]]:
    """For each beginning, of classes that anything is of since the first."""
    classes = {tier for _, tier, minute in minutes if min(since) <= minute < until}
    return [
        {
            tier: (
                sum(one.requests for (_, t, at), one in minutes.items() if t == tier and start <= at < until),
                sum(one.failed for (_, t, at), one in minutes.items() if t == tier and start <= at < until),
            )
            for tier in classes
        }
        for start in since
    ]


SEEN: list[Seen] = [
    ("tnt_a", "priority", 5, False, 0.08),
    ("tnt_a", "priority", 70, True, 0.08),
    ("tnt_b", "flex", 1740, False, 3.0),
]


@pytest.mark.parametrize(
    ("damage", "named", "differing"),
    [
        (
            "UPDATE sla_hours SET requests = requests + 7 WHERE service_tier = 'flex'",
            [("hour", "tnt_b", "flex", 29)],
            {"requests": (1, 8)},
        ),
        (
            "UPDATE sla_days SET failed = 0 WHERE service_tier = 'priority'",
            [("day", "tnt_a", "priority", 0)],
            {"failed": (1, 0)},
        ),
        (
            "UPDATE sla_hours SET first_token_histogram[1] = 2 WHERE failed = 0 AND tenant_id = 'tnt_a'",
            [("hour", "tnt_a", "priority", 0)],
            {"first_token_histogram"},
        ),
        (
            "DELETE FROM sla_hours WHERE failed = 1",
            [("hour", "tnt_a", "priority", 1)],
            {"requests", "failed"},
        ),
        (
            "DELETE FROM sla_minutes WHERE failed = 1",
            [("hour", "tnt_a", "priority", 1), ("day", "tnt_a", "priority", 0)],
            {"requests", "failed"},
        ),
    ],
)
async def test_a_sum_that_is_not_its_minutes_is_named_and_mended(
    database: Database,
    damage: str,
    named: list[tuple[str, str, str, int]],
    differing: dict[str, tuple[int, int]] | set[str],
) -> None:
    await keep(database, SEEN)
    assert await rederive(database, *SPAN) == []
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(damage))
    found = await rederive(database, *SPAN)
    assert [(one.unit, one.tenant_id, one.service_tier, one.start) for one in found] == [
        (*whose, START + hour * AN_HOUR) for *whose, hour in named
    ]
    if isinstance(differing, dict):
        assert [one.differing for one in found] == [differing]
    else:
        assert all(differing <= one.differing.keys() for one in found)
    assert await rederive(database, *SPAN, fix=True) == found
    assert await rederive(database, *SPAN) == []


async def test_mending_while_others_write_loses_nothing(database: Database) -> None:
    await keep(database, SEEN)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE sla_hours SET requests = requests + 7"))
        await session.execute(text("DELETE FROM sla_days"))

    async def write() -> None:
        for _ in range(20):
            await keep(database, SEEN)

    async def mend() -> None:
        for _ in range(10):
            await rederive(database, *SPAN, fix=True)

    await asyncio.gather(write(), write(), mend())
    assert await rederive(database, *SPAN) == []
    async with database.read("tnt_b") as reading:
        found = await SlaRepository(reading, "tnt_b").totals(*SPAN)
    assert found["flex"].requests == 41


async def test_a_batch_that_fails_is_in_neither(database: Database) -> None:
    """Minutes, hours and days are one transaction."""

    async def written_and_given_up() -> None:
        async with database.write(EVERY_TENANT) as session:
            await SlaWriter(session).add(counted(SEEN))
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await written_and_given_up()
    async with database.read(EVERY_TENANT) as session:
        for granularity in GRANULARITIES:
            counted_rows = await session.execute(text(f"SELECT count(*) FROM {granularity.table}"))
            assert counted_rows.scalar_one() == 0
