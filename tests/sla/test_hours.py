"""Hours of service levels: whatever stretch is asked for comes to what its minutes come to; damage to them is
named and mended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from sla.grains import pieces
from sla.hours import rederive
from sla.incidents.repository import ServedToAll
from sla.measures import Counts
from sla.models import SlaHour, SlaMinute
from sla.repository import SlaRepository, SlaWriter

NIGHT = datetime(2026, 4, 30, 20, tzinfo=UTC)
"""A month ends in it."""
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
TENANTS, TIERS = ("tnt_a", "tnt_b"), ("priority", "default", "flex")

offsets = st.integers(0, 9 * 60)
instants = st.builds(
    lambda minute, micros: NIGHT + minute * MINUTE + timedelta(microseconds=micros),
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
        counts = found.setdefault((tenant, tier, NIGHT + minute * MINUTE), Counts())
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
        for table in ("sla_minutes", "sla_hours"):
            await session.execute(text(f"DELETE FROM {table}"))


@given(instants, instants)
@example(NIGHT, NIGHT)
@example(NIGHT, NIGHT + HOUR)
@example(NIGHT + MINUTE, NIGHT + 2 * HOUR - MINUTE)
def test_pieces_cover_each_minute_once(start: datetime, end: datetime) -> None:
    found = pieces(start, end)
    if start >= end:
        assert found == []
        return
    assert (found[0].start, found[-1].end) == (start, end)
    assert all(one.end == following.start for one, following in pairwise(found))
    assert len(found) <= 3
    for piece in found:
        assert piece.start < piece.end
        if piece.row is SlaHour:
            assert all(not at.minute and not at.second and not at.microsecond for at in astuple(piece)[1:])
        else:
            assert piece.end - piece.start < 2 * HOUR
    assert (SlaHour in {piece.row for piece in found}) == (
        end - start >= HOUR and _has_whole_hour(start, end)
    )


def _has_whole_hour(start: datetime, end: datetime) -> bool:
    hours = [NIGHT + number * HOUR for number in range(11)]
    return any(start <= hour and hour + HOUR <= end for hour in hours)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    assert await rederive(database, NIGHT, NIGHT + 10 * HOUR) == []


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
    ("tnt_b", "flex", 300, False, 3.0),
]


@pytest.mark.parametrize(
    ("damage", "hour", "differing"),
    [
        (
            "UPDATE sla_hours SET requests = requests + 7 WHERE service_tier = 'flex'",
            ("tnt_b", "flex", 5),
            {"requests": (1, 8)},
        ),
        (
            "UPDATE sla_hours SET first_token_histogram[1] = 2 WHERE failed = 0 AND tenant_id = 'tnt_a'",
            ("tnt_a", "priority", 0),
            {"first_token_histogram"},
        ),
        ("DELETE FROM sla_hours WHERE failed = 1", ("tnt_a", "priority", 1), {"requests", "failed"}),
        ("DELETE FROM sla_minutes WHERE failed = 1", ("tnt_a", "priority", 1), {"requests", "failed"}),
    ],
)
async def test_an_hour_that_is_not_its_minutes_is_named_and_mended(
    database: Database,
    damage: str,
    hour: tuple[str, str, int],
    differing: dict[str, tuple[int, int]] | set[str],
) -> None:
    await keep(database, SEEN)
    assert await rederive(database, NIGHT, NIGHT + 30 * HOUR) == []
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(damage))
    [found] = await rederive(database, NIGHT, NIGHT + 30 * HOUR)
    assert (found.tenant_id, found.service_tier, found.hour) == (*hour[:2], NIGHT + hour[2] * HOUR)
    if isinstance(differing, dict):
        assert found.differing == differing
    else:
        assert differing <= found.differing.keys()
    assert await rederive(database, NIGHT, NIGHT + 30 * HOUR, fix=True) == [found]
    assert await rederive(database, NIGHT, NIGHT + 30 * HOUR) == []


async def test_mending_while_others_write_loses_nothing(database: Database) -> None:
    await keep(database, SEEN)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE sla_hours SET requests = requests + 7"))

    async def write() -> None:
        for _ in range(20):
            await keep(database, SEEN)

    async def mend() -> None:
        for _ in range(10):
            await rederive(database, NIGHT, NIGHT + 10 * HOUR, fix=True)

    await asyncio.gather(write(), write(), mend())
    assert await rederive(database, NIGHT, NIGHT + 10 * HOUR) == []
    async with database.read("tnt_b") as reading:
        found = await SlaRepository(reading, "tnt_b").totals(NIGHT, NIGHT + 10 * HOUR)
    assert found["flex"].requests == 41


async def test_a_batch_that_fails_is_in_neither(database: Database) -> None:
    """Minutes and hours are one transaction."""

    async def written_and_given_up() -> None:
        async with database.write(EVERY_TENANT) as session:
            await SlaWriter(session).add(counted(SEEN))
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await written_and_given_up()
    async with database.read(EVERY_TENANT) as session:
        for row in (SlaMinute, SlaHour):
            counted_rows = await session.execute(text(f"SELECT count(*) FROM {row.__tablename__}"))
            assert counted_rows.scalar_one() == 0
