"""Books that balance do; damage of each kind, made by hand, is found and named."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta

import msgspec
import pytest
import redis.asyncio
from sqlalchemy import text

from adapters.calibration.serving import ENDPOINT as CALIBRATING
from billing.metering import DEAD_LETTERS, GROUP, JournalMeter
from billing.reconciliation.differences import CHECKS, Difference
from billing.reconciliation.rendering import COLUMNS, as_csv, as_json, as_text
from billing.reconciliation.service import ReconciliationService
from billing.reversals import ReversalService
from db.session import EVERY_TENANT
from engine.protocol import JOURNAL_STREAM
from tenants.actors import OPERATOR
from tests.billing.reconciliation.conftest import DAY, END, NOW, Books, event

HOUR = timedelta(hours=1)


def checks(found: list[Difference]) -> set[str]:
    return {one.check for one in found}


async def test_books_that_balance_do(books: Books) -> None:
    await ReversalService(books.database).reverse_request(
        "tnt_a", "req-0", DAY, reason="test", by=OPERATOR, now=DAY + HOUR
    )
    report = await books.reconcile()
    assert not report.differences
    assert report.balanced
    assert report.outcomes["stripe"].why_not == "there is no payment provider"
    assert set(report.outcomes) == set(CHECKS)
    kept = await books.service.find(report.id)
    assert kept == report


@pytest.mark.parametrize(
    ("table", "unit", "at"),
    [
        ("usage_rollups", "minute", DAY + 5 * HOUR),
        ("usage_rollup_hours", "hour", DAY + 5 * HOUR),
        ("usage_rollup_days", "day", DAY),
    ],
)
async def test_a_sum_that_was_changed_is_named(books: Books, table: str, unit: str, at: datetime) -> None:
    statement = f"UPDATE {table} SET completion_tokens = completion_tokens + 7 WHERE {unit} = :at"
    assert await books.damage(f"{statement} AND tenant_id = 'tnt_b'", at=at) == 1
    found = await books.differences()
    [one] = [difference for difference in found if difference.check == "rollups"]
    assert one.what.startswith(f"completion_tokens of the {unit}, key_id=key_a model=")
    assert (one.tenant_id, one.at, one.found - one.expected) == ("tnt_b", at, 7)
    if unit == "day":  # whole days are read from it, and tenants are told so
        [told] = [difference for difference in found if difference.check == "usage_api"]
        assert (told.what, told.found - told.expected) == ("completion_tokens of the day", 7)


async def test_a_sum_that_is_gone_is_named(books: Books) -> None:
    assert (
        await books.damage("DELETE FROM usage_rollup_days WHERE tenant_id = 'tnt_a' AND day = :at", at=DAY)
        == 1
    )
    found = await books.differences()
    assert checks(found) == {"rollups", "usage_api", "costs_api"}
    assert all(one.found < one.expected and one.tenant_id == "tnt_a" for one in found)
    [told] = [one for one in found if one.check == "costs_api"]
    storage = 40_000
    assert (told.what, told.at, told.found) == ("micro-USD of the day", DAY, storage)


async def test_a_record_that_was_lost_counted_twice_or_changed_is_named(books: Books) -> None:
    assert await books.damage("DELETE FROM usage_records WHERE request_id = 'req-2'") == 1
    assert await books.damage("UPDATE usage_records SET prompt_tokens = 99 WHERE request_id = 'req-4'") == 1
    found = await books.differences()
    assert checks(found) == {"rollups", "usage_api", "costs_api"}
    minutes = {
        (one.at, one.what.split(" ", 1)[0]): one.found - one.expected
        for one in found
        if " of the minute," in one.what
    }
    assert minutes[DAY + 10 * HOUR, "num_requests"] == 1
    assert minutes[DAY + 20 * HOUR, "prompt_tokens"] == 10 - 99


async def test_a_price_that_was_changed_is_named(books: Books) -> None:
    changed = "UPDATE usage_records SET output_price = 1 WHERE request_id = 'req-1'"
    assert await books.damage(changed) == 1
    assert await books.damage("UPDATE usage_records SET price_id = 'prc_x' WHERE request_id = 'req-3'") == 1
    found = [one for one in await books.differences() if one.check == "prices"]
    assert [(one.what, one.expected, one.found) for one in found] == [
        ("output price of req-1", 7_000_000, 1),
        ("price prc_x of req-3", 1, 0),
    ]


async def test_a_request_without_a_price_is_named(books: Books) -> None:
    changed = (
        "UPDATE usage_records SET price_id = '', input_price = 0, output_price = 0 WHERE request_id = 'req-1'"
    )
    assert await books.damage(changed) == 1
    found = [one for one in await books.differences() if one.check == "prices"]
    assert [(one.what, one.tenant_id) for one in found] == [("version of the price list of req-1", "tnt_b")]


async def test_what_a_calibration_asked_needs_no_price(books: Books) -> None:
    free = "UPDATE usage_records SET price_id = '', input_price = 0, output_price = 0, endpoint = :endpoint"
    assert await books.damage(f"{free} WHERE request_id = 'req-1'", endpoint=CALIBRATING) == 1
    assert [one for one in await books.differences() if one.check == "prices"] == []


async def test_storage_that_was_not_charged_or_charged_wrongly_is_named(books: Books) -> None:
    first, second = ("storage:2026-11-10:adp_a@1", "storage:2026-11-11:adp_a@1")
    assert await books.damage("DELETE FROM charges WHERE id = :id", id=first) == 1
    assert await books.damage("UPDATE charges SET cost = 1 WHERE id = :id", id=second) == 1
    found = [one for one in await books.differences() if one.check == "charges"]
    assert [(one.what, one.expected, one.found) for one in found] == [
        (f"micro-USD of {first}", 40_000, 0),
        (f"micro-USD of {second}", 40_000, 1),
    ]
    assert await books.damage("DELETE FROM charged_days WHERE day = '2026-11-11'") == 1
    found = [one for one in await books.differences() if one.check == "charges"]
    assert ("storage is charged", DAY + timedelta(days=1)) in [(one.what, one.at) for one in found]


async def test_a_calibration_that_was_not_charged_is_named(books: Books) -> None:
    due = "INSERT INTO calibrations_due (job_id, tenant_id, finished_at) VALUES ('job_a', 'tnt_a', :at)"
    await books.damage(due, at=NOW - HOUR)
    assert not await books.differences(), "it may be charged yet"
    await books.damage("UPDATE calibrations_due SET finished_at = :at", at=NOW - 3 * HOUR)
    assert [one.what for one in await books.differences()] == ["calibration job_a is charged"]


async def test_what_waits_in_the_journal_is_named_until_it_is_drained(books: Books) -> None:
    grown = event("req-1", "tnt_b", DAY + 5 * HOUR, completion=50, cached=1, reasoning=20)
    new = event("req-new", "tnt_a", DAY + 7 * HOUR, prompt=4, completion=0)
    known = event("req-3", "tnt_b", DAY + 15 * HOUR)
    before = round((NOW - timedelta(minutes=2)).timestamp() * 1000)
    for number, one in enumerate((grown, new, known)):
        await books.redis.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(one)}, id=f"{before}-{number}")
    late = event("req-late", "tnt_a", DAY + 8 * HOUR)
    now = f"{round(NOW.timestamp() * 1000)}-0"
    await books.redis.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(late)}, id=now)
    found = await books.differences()
    assert [(one.check, one.tenant_id, one.what, one.expected, one.found) for one in found] == [
        ("journal", "tnt_b", "completion tokens of req-1", 50, 5),
        ("journal", "tnt_b", "reasoning tokens of req-1", 20, 0),
        ("journal", "tnt_a", "prompt tokens of req-new", 4, 0),
        ("journal", "tnt_a", "requests of req-new", 1, 0),
    ]
    await JournalMeter(books.database, books.redis, GROUP).drain()
    assert not await books.differences()


async def test_a_dead_letter_is_named(books: Books) -> None:
    await books.redis.xadd(DEAD_LETTERS, {"e": b"", "id": "17-0", "reason": "no field e"})
    [one] = await books.differences()
    assert (one.check, one.what) == ("dead_letters", "entry 17-0: no field e")


async def test_redis_away_hides_no_other_difference(books: Books) -> None:
    nowhere = redis.asyncio.Redis.from_url("redis://127.0.0.1:1/0")
    assert await books.damage("DELETE FROM usage_rollup_hours WHERE tenant_id = 'tnt_a'") >= 1
    report = await ReconciliationService(books.database, nowhere, clock=lambda: NOW).reconcile(DAY, END)
    assert report.outcomes["journal"].why_not
    assert report.outcomes["rollups"].differences
    assert not report.balanced
    await nowhere.aclose()


async def test_a_check_that_could_not_be_made_is_no_balance(books: Books) -> None:
    nowhere = redis.asyncio.Redis.from_url("redis://127.0.0.1:1/0")
    report = await ReconciliationService(books.database, nowhere, clock=lambda: NOW).reconcile(DAY, END)
    assert not report.num_differences
    assert not report.balanced
    assert "Not every book could be compared" in as_text(report)
    await nowhere.aclose()


async def test_a_night_is_compared_once_and_after_its_hour(books: Books) -> None:
    now = END + timedelta(minutes=30)
    service = ReconciliationService(books.database, books.redis, clock=lambda: now)
    assert await service.reconcile_if_due() is None
    now = END + 2 * HOUR
    report = await service.reconcile_if_due()
    assert report is not None
    assert (report.start, report.end) == (DAY, END)
    assert await service.reconcile_if_due() is None
    latest = await service.latest()
    assert latest is not None
    assert latest.id == report.id
    await service.reconcile(DAY, END + timedelta(days=1))  # the day that runs, on demand: no night's
    now += timedelta(days=1)
    again = await service.reconcile_if_due()
    assert again is not None
    assert again.start == DAY + timedelta(days=1)


async def test_only_whole_days_are_compared(books: Books) -> None:
    with pytest.raises(ValueError, match="start"):
        await books.service.reconcile(DAY + HOUR, END)
    with pytest.raises(ValueError, match="end"):
        await books.service.reconcile(DAY, DAY)


async def test_the_report_says_the_same_in_every_form(books: Books) -> None:
    await books.damage("UPDATE usage_rollups SET model = '=1+1' WHERE minute = :at", at=DAY)
    await books.redis.xadd(DEAD_LETTERS, {"e": b"", "id": "=cmd", "reason": "x"})
    report = await books.reconcile()
    document = json.loads(as_json(report))
    assert document["num_differences"] == len(document["differences"]) == report.num_differences > 1
    assert document["checks"]["rollups"]["differences"] > 1
    header, *lines = csv.reader(io.StringIO(as_csv(report)))
    assert tuple(header) == COLUMNS
    assert len(lines) == report.num_differences
    assert [int(line[5]) - int(line[4]) for line in lines] == [int(line[6]) for line in lines]
    shown = as_text(report)
    assert "dead_letters: - " in shown
    assert shown.endswith("The books do not balance.")


async def test_tenants_see_none_of_it(books: Books) -> None:
    await books.damage("DELETE FROM usage_rollup_hours WHERE tenant_id = 'tnt_a'")
    await books.reconcile()
    query = "SELECT count(*) FROM reconciliation_differences"
    for tenant, sees in (("tnt_b", False), ("tnt_a", True), (EVERY_TENANT, True)):
        async with books.database.read(tenant) as session:
            assert bool((await session.execute(text(query))).scalar_one()) is sees
