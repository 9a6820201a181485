from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from structlog.testing import capture_logs

from billing.folding import Measured, fold, measure
from billing.metering import DEAD_LETTERS, GROUP, JournalMeter
from billing.partitions import make_partitions_ahead
from billing.service import UsageReports
from cli.local.server import LocalServer
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM, UsageEvent
from tests.billing.strategies import histories
from tests.support.examples import examples
from tests.support.journal import NOW, usage_event
from tests.support.ledger import assert_rollups_are_the_ledgers, forget_ledger, query

Rows = list[dict[str, Any]]


@pytest.fixture
async def meter(database: Database, redis_client: redis.asyncio.Redis) -> JournalMeter:
    return JournalMeter(database, redis_client, "meter-1", batch_size=50, stale_after=0.0)


async def write(client: redis.asyncio.Redis, *events: UsageEvent) -> None:
    for event in events:
        await client.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})


async def ledger(database: Database) -> Rows:
    return await query(database, "SELECT * FROM usage_records ORDER BY submitted_at, request_id")


def assert_rows_are(rows: Rows, expected: list[Measured]) -> None:
    assert len(rows) == len(expected)
    for row, measured in zip(rows, expected, strict=True):
        for name in measured.__dataclass_fields__:
            value = getattr(measured, name)
            if name in ("submitted_at", "recorded_at"):
                value = datetime.fromtimestamp(value, UTC)
            assert row[name] == value, name


async def test_a_request_becomes_one_row(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    last = usage_event(
        "a",
        10,
        300,
        8,
        finished_at=NOW + 3,
        finish_reason="stop",
        scheduled_at=NOW + 0.5,
        first_token_at=NOW + 1,
    )
    await write(redis_client, usage_event("a", 10, 256, 8), last, usage_event("b"))
    drained = await meter.drain()
    assert (drained.num_entries, drained.num_requests, drained.num_malformed) == (3, 2, 0)
    assert_rows_are(await ledger(database), fold([measure(last), measure(usage_event("b"))]))
    await assert_rollups_are_the_ledgers(database)
    assert await redis_client.xlen(JOURNAL_STREAM) == 0
    assert (await redis_client.xpending(JOURNAL_STREAM, GROUP))["pending"] == 0


async def test_counts_grow_over_batches_and_never_shrink(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    for completion in (5, 300, 256, 300, 12):
        await write(redis_client, usage_event("a", 10, completion))
        await meter.drain()
        await assert_rollups_are_the_ledgers(database)
    assert [row["completion_tokens"] for row in await ledger(database)] == [300]


async def test_the_ledger_keeps_the_largest_of_each_count(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    """Each batch has one of them larger than what is stored."""
    counts = [(10, 5, 2, 0), (40, 3, 1, 0), (8, 50, 6, 0), (20, 4, 17, 0), (20, 4, 0, 2)]
    for prompt, completion, cached, preemptions in counts:
        await write(redis_client, usage_event("a", prompt, completion, cached, preemptions=preemptions))
        await meter.drain()
        await assert_rollups_are_the_ledgers(database)
    (row,) = await ledger(database)
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "preemptions")
    assert tuple(row[name] for name in names) == (40, 50, 17, 2)


async def test_what_engines_wrote_before_the_first_meter_counts(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event())
    assert (await JournalMeter(database, redis_client, "late").drain()).num_entries == 1


async def test_a_stream_lost_with_its_redis_is_taken_up_again(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await meter.drain()
    await redis_client.flushall()
    await write(redis_client, usage_event())
    assert (await meter.drain()).num_entries == 1


async def test_malformed_entries_go_to_the_dead_letters_and_block_no_others(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event("a"))
    await redis_client.xadd(JOURNAL_STREAM, {b"e": b"\xc1 not msgpack"})
    await redis_client.xadd(JOURNAL_STREAM, {b"other": b"field"})
    await write(redis_client, usage_event("nan", submitted_at=float("nan")), usage_event("b"))
    with capture_logs() as lines:
        drained = await meter.drain()
    assert (drained.num_entries, drained.num_requests, drained.num_malformed) == (5, 2, 3)
    assert [row["request_id"] for row in await ledger(database)] == ["a", "b"]
    letters = [fields for _, fields in await redis_client.xrange(DEAD_LETTERS)]
    assert [fields[b"e"] for fields in letters[:2]] == [b"\xc1 not msgpack", b""]
    assert b"submitted_at is nan" in letters[2][b"reason"]
    assert [line["event"] for line in lines] == 3 * ["journal entry is malformed"]
    assert "submitted_at is nan" in lines[2]["error"]
    assert await redis_client.xlen(JOURNAL_STREAM) == 0


async def test_a_value_only_postgres_refuses_goes_to_the_dead_letters_alone(
    meter: JournalMeter, database: Database, owner_database: Database, redis_client: redis.asyncio.Redis
) -> None:
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(
            text("ALTER TABLE usage_records ADD CONSTRAINT refused CHECK (request_id <> 'req-5') NOT VALID")
        )
    await write(redis_client, *(usage_event(f"req-{i}") for i in range(9)))
    drained = await meter.drain()
    assert (drained.num_requests, drained.num_malformed) == (8, 1)
    assert len(await ledger(database)) == 8
    await assert_rollups_are_the_ledgers(database)
    [(_, letter)] = await redis_client.xrange(DEAD_LETTERS)
    assert b"refused by the ledger" in letter[b"reason"]


async def test_entries_a_dead_meter_took_are_claimed(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event("a"), usage_event("b"))
    await redis_client.xgroup_create(JOURNAL_STREAM, GROUP, id="0")
    await redis_client.xreadgroup(GROUP, "dead", {JOURNAL_STREAM: ">"})
    patient = JournalMeter(database, redis_client, "patient", stale_after=60)
    assert (await patient.drain()).num_entries == 0, "their owner may still live"
    prompt = JournalMeter(database, redis_client, "prompt", stale_after=0)
    assert (await prompt.drain()).num_entries == 2
    assert len(await ledger(database)) == 2


async def test_entries_that_vanished_while_pending_are_passed_over(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event("a"), usage_event("b"))
    await redis_client.xgroup_create(JOURNAL_STREAM, GROUP, id="0")
    [[_, entries]] = await redis_client.xreadgroup(GROUP, "dead", {JOURNAL_STREAM: ">"})
    await redis_client.xdel(JOURNAL_STREAM, entries[0][0])
    assert (await meter.drain()).num_entries == 1


async def test_meters_at_once_count_everything_once(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    """All claim each other's entries as soon as they are taken: most are worked on several times."""
    events = [usage_event(f"req-{i % 40}", completion=i) for i in range(400)]
    await write(redis_client, *events)
    meters = [
        JournalMeter(database, redis_client, f"meter-{i}", batch_size=17, stale_after=0.0) for i in range(4)
    ]
    for _ in range(3):
        await asyncio.gather(*(meter.drain(max_batches=50) for meter in meters))
    assert_rows_are(await ledger(database), fold(measure(event) for event in events))
    await assert_rollups_are_the_ledgers(database)
    assert await redis_client.xlen(JOURNAL_STREAM) == 0


async def test_postgres_away_leaves_the_journal_as_it_is(
    redis_client: redis.asyncio.Redis, database: Database
) -> None:
    await write(redis_client, usage_event())
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    with pytest.raises(DatabaseUnavailable):
        await JournalMeter(away, redis_client, "one").drain()
    assert await redis_client.xlen(JOURNAL_STREAM) == 1
    again = JournalMeter(database, redis_client, "one", stale_after=0)
    assert (await again.drain()).num_requests == 1
    await away.close()


async def test_silent_meters_that_owe_nothing_are_forgotten(
    meter: JournalMeter, redis_client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(redis_client, usage_event())
    await redis_client.xgroup_create(JOURNAL_STREAM, GROUP, id="0")
    await redis_client.xreadgroup(GROUP, "owes", {JOURNAL_STREAM: ">"})
    await redis_client.xgroup_createconsumer(JOURNAL_STREAM, GROUP, "silent")
    assert await meter.forget_idle_consumers() == 0, "not silent for long"
    monkeypatch.setattr("db.stream.FORGET_CONSUMER_AFTER", 0.01)
    await asyncio.sleep(0.05)
    assert await meter.forget_idle_consumers() == 1
    left = await redis_client.xinfo_consumers(JOURNAL_STREAM, GROUP)
    assert [consumer["name"] for consumer in left] == [b"owes"]


async def test_the_backlog_is_what_has_no_row_yet(
    meter: JournalMeter, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event("a"), usage_event("b"))
    assert await meter.backlog() == 2
    await meter.drain()
    assert await meter.backlog() == 0


async def test_a_month_without_a_partition_is_kept_and_moves_into_its_own(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    future = datetime(2031, 5, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    following = datetime(2031, 6, 1, tzinfo=UTC)
    await write(
        redis_client,
        usage_event("may", submitted_at=future.timestamp()),
        usage_event("june", submitted_at=following.timestamp()),
    )
    await meter.drain()
    where = "SELECT request_id, tableoid::regclass::text AS place FROM usage_records ORDER BY submitted_at"
    assert {row["place"] for row in await query(database, where)} == {"usage_records_default"}
    assert await make_partitions_ahead(database, future) == 4
    assert await make_partitions_ahead(database, future) == 0
    assert await query(database, where) == [
        {"request_id": "may", "place": "usage_records_y2031m05"},
        {"request_id": "june", "place": "usage_records_y2031m06"},
    ]
    await write(redis_client, usage_event("may", completion=50, submitted_at=future.timestamp()))
    await meter.drain()
    assert [row["completion_tokens"] for row in await ledger(database)] == [50, 5]
    await assert_rollups_are_the_ledgers(database)


async def test_a_partition_asked_for_while_the_ledger_is_busy_gives_up(
    database: Database, postgres_server: LocalServer
) -> None:
    impatient = Database(database.engine.url.render_as_string(hide_password=False), statement_timeout=0.3)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("LOCK TABLE usage_records_default IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(DatabaseUnavailable):
            await make_partitions_ahead(impatient, datetime(2032, 1, 1, tzinfo=UTC))
    await impatient.close()


async def test_tenant_and_time_are_found_by_index(database: Database) -> None:
    plan = await query(
        database,
        "EXPLAIN SELECT * FROM usage_records WHERE tenant_id = 'x' AND submitted_at >= '2026-11-01' "
        "AND submitted_at < '2026-11-02'",
    )
    lines = [row["QUERY PLAN"] for row in plan]
    assert any("tenant_id_submitted_at_idx" in line for line in lines), lines
    assert not any("y2026m12" in line for line in lines), "partitions of other months are not read"


async def test_a_record_is_found_by_its_request(
    meter: JournalMeter, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    await write(redis_client, usage_event("a"), usage_event("b", tenant="tnt_b"))
    await meter.drain()
    reports = UsageReports(database)
    found = await reports.record("tnt_a", "a", submitted_at=NOW)
    assert found is not None
    assert found.completion_tokens == 5
    assert await reports.record("tnt_a", "b", submitted_at=NOW) is None, "another tenant's"
    assert [row.request_id for row in await reports.records("tnt_a", start=NOW, end=NOW + 1)] == ["a"]


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=histories(), random=st.randoms(use_true_random=False))
async def test_any_order_duplication_and_splitting_gives_the_same_ledger(
    database: Database,
    owner_database: Database,
    redis_client: redis.asyncio.Redis,
    events: list[UsageEvent],
    random: Any,
) -> None:
    await forget_ledger(owner_database)
    await redis_client.flushall()
    journal = events + random.choices(events, k=random.randint(0, len(events)))
    random.shuffle(journal)
    meters = [
        JournalMeter(database, redis_client, f"m{i}", batch_size=size) for i, size in enumerate((1, 3, 50))
    ]
    while journal:
        cut = random.randint(1, len(journal))
        await write(redis_client, *journal[:cut])
        del journal[:cut]
        await random.choice(meters).drain()
    for meter in meters:
        await meter.drain()
    assert_rows_are(await ledger(database), fold(measure(event) for event in events))
    await assert_rollups_are_the_ledgers(database)
