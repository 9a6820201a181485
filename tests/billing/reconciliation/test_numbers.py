"""Usage that engines numbered and the ledger never got: named with its count, unless it is on its way."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest
import redis.asyncio

from billing.event_numbers.repository import EventNumbers
from billing.reconciliation.differences import Difference, Report
from billing.reconciliation.rendering import as_text
from billing.reconciliation.service import ReconciliationService
from billing.reconciliation.spools import SpoolComparison
from db.session import EVERY_TENANT
from engine.protocol import JOURNAL_STREAM, EngineMessage, IssuedEvents, SetAside, Spooled, UsageEvent
from tests.billing.event_numbers.test_ranges import numbered
from tests.billing.reconciliation.conftest import DAY, END, NOW, Books

SOON = END - timedelta(hours=1)
"""Within what is compared, and long ago at NOW."""
EVENTS = numbered([10, 20, 30, 40, 50, 60])


async def came_in(books: Books, events: list[UsageEvent], at: datetime = SOON) -> None:
    async with books.database.write(EVERY_TENANT) as session:
        await EventNumbers(session).note(events, at)


async def ended(books: Books, events: int, tokens: int, at: datetime = SOON) -> None:
    async with books.database.write(EVERY_TENANT) as session:
        await EventNumbers(session).end([IssuedEvents("engine-0", "one", events, tokens, at.timestamp())])


def named(found: Report | list[Difference]) -> list[tuple[str, int]]:
    differences = found.differences if isinstance(found, Report) else found
    return [(one.what, one.expected - one.found) for one in differences]


WHO = "engine-0, incarnation one: "


async def test_a_gap_and_a_missing_end_are_named_with_their_counts(books: Books) -> None:
    await came_in(books, [EVENTS[0], EVENTS[3]])
    assert named(await books.differences()) == [
        (f"{WHO}usage events 2 to 3 are missing, with 50 completion tokens", 2)
    ]
    await ended(books, 6, 210)
    report = await books.reconcile()
    assert named(report) == [
        (f"{WHO}usage events 2 to 3 are missing, with 50 completion tokens", 2),
        (f"{WHO}usage events 5 to 6 are missing, with 110 completion tokens", 2),
    ]
    assert not report.balanced
    assert ["event_numbers", "2", "differences"] in [line.split() for line in as_text(report).splitlines()]
    await came_in(books, EVENTS)
    assert (await books.reconcile()).balanced


async def test_an_incarnation_of_which_nothing_came_in_is_missed(books: Books) -> None:
    await ended(books, 1, 17)
    assert named(await books.differences()) == [
        (f"{WHO}usage event 1 is missing, with 17 completion tokens", 1)
    ]


async def test_what_became_known_two_minutes_ago_is_on_its_way(books: Books) -> None:
    service = ReconciliationService(books.database, books.redis, clock=lambda: SOON + timedelta(seconds=90))
    await came_in(books, [EVENTS[0], EVENTS[3]])
    report = await service.reconcile(DAY, END)
    assert not report.differences
    assert report.outcomes["event_numbers"].on_its_way == 1
    assert "usage events 2 to 3" in report.on_their_way[0].what


async def test_what_waits_in_the_journal_is_not_missing(books: Books) -> None:
    await came_in(books, [EVENTS[0], EVENTS[3]])
    for event in EVENTS[1:3]:
        await books.redis.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})
    report = await books.reconcile()
    assert report.outcomes["event_numbers"].differences == 0


async def test_a_gap_is_named_in_the_days_it_became_known_in(books: Books) -> None:
    await came_in(books, [EVENTS[0], EVENTS[3]], DAY - timedelta(days=3))
    assert not await books.differences()
    days = DAY - timedelta(days=4), DAY
    assert len((await books.service.reconcile(*days)).differences) == 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Spooled:
    """What an engine answers that runs incarnation `one`, and has issued all events."""
    answer = Spooled(
        events=[
            msgspec.msgpack.encode(msgspec.structs.replace(one, recorded_at=SOON.timestamp()))
            for one in EVENTS[4:]
        ],
        issued=[
            IssuedEvents("engine-0", "before", 2, 9, SOON.timestamp()),
            IssuedEvents("engine-0", "one", 6, 210, SOON.timestamp()),
        ],
        set_aside=[SetAside("usage.spool.damaged-17", 1024)],
    )
    over_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=EngineMessage)
    assert isinstance(over_the_wire, Spooled)

    async def answered(endpoint: str) -> Spooled:
        return over_the_wire

    monkeypatch.setattr("billing.reconciliation.spools._disk", answered)
    return over_the_wire


async def test_an_engine_is_asked_what_it_issued_and_what_it_set_aside(
    books: Books, redis_client: redis.asyncio.Redis, disk: Spooled
) -> None:
    await came_in(books, [replace_number(EVENTS[0]), EVENTS[1]])
    service = ReconciliationService(
        books.database, redis_client, clock=lambda: NOW, engines=["ipc:///engine.sock"]
    )
    report = await service.reconcile(DAY, END)
    found = [one for one in named(report) if "incarnation" in one[0] or "set aside" in one[0]]
    assert found == [
        (
            "usage.spool.damaged-17, 1024 damaged bytes, is set aside on the disk of ipc:///engine.sock: "
            "import what can be read with `rootstock billing import-spool`, then remove it",
            -1,
        ),
        ("engine-0, incarnation before: usage events 1 to 2 are missing, with 9 completion tokens", 2),
        (f"{WHO}usage events 3 to 4 are missing, with 70 completion tokens", 2),
    ], "the last two are on the disk"


def replace_number(event: UsageEvent) -> UsageEvent:
    """The same, as it comes a second time."""
    return msgspec.structs.replace(event, recorded_at=event.recorded_at + 1)


async def test_of_a_long_list_on_a_disk_the_end_is_not_taken_for_missing(
    books: Books, disk: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.reconciliation.spools.MOST_HELD", 1)
    spools = SpoolComparison(books.database, ["ipc:///engine.sock"], NOW)
    await spools.compare()
    assert [one.incarnation for one in spools.issued] == ["before"]
    assert replace(next(iter(spools.numbers.values()))[0], noted_at=NOW).first == 5
