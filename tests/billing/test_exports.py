"""Exports of the ledger: they add up to the reports and to the ledger's rows, and hold nothing while read."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet
import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from sqlalchemy import text

from billing.errors import InvalidReportQuery
from billing.rates import Rate
from billing.reports import ledger_table
from billing.reports.buckets import MAX_TIME
from billing.reports.filtering import Slice
from billing.service import UsageReports
from db.errors import DatabaseUnavailable
from db.session import Database
from engine.protocol import Usage
from tenants.service import TenantService
from tests.support.booked import DAY, END, START, Booked, book, bookings, request, write
from tests.support.examples import examples
from tests.support.statements import Statements

COUNTS = ("num_requests", "input_tokens", "input_cached_tokens", "output_tokens", "cost_micro_usd")
"""What reports and exports have."""
NUMBERS = (*COUNTS, "reasoning_tokens")
GROUPS = ("project_id", "user_id", "api_key_id", "model", "service_tier", "adapter_id")
ROWS = """
    SELECT 1 AS requests, prompt_tokens, cached_tokens, completion_tokens, cost + surcharge, reasoning_tokens
    FROM usage_records
    WHERE submitted_at >= to_timestamp(:start) AND submitted_at < to_timestamp(:end)
    UNION ALL SELECT 0, 0, 0, 0, cost, 0 FROM charges
    WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)
    UNION ALL SELECT -num_requests, -back.prompt_tokens, -back.cached_tokens, -back.completion_tokens,
        -back.cost, -coalesce(reasoning_tokens, 0)
    FROM reversals back LEFT JOIN usage_records USING (request_id)
    WHERE at >= to_timestamp(:start) AND at < to_timestamp(:end)
"""
Table = list[dict[str, Any]]


async def exported(reports: UsageReports, tenant: str, **asked: Any) -> bytes:
    export = await reports.exports.open(
        tenant, **({"format": "csv", "start_time": START, "end_time": END} | asked)
    )
    return b"".join([piece async for piece in export.pieces])


async def table(reports: UsageReports, tenant: str, **asked: Any) -> Table:
    """Of either form, with the same types."""
    content = await exported(reports, tenant, **asked)
    if asked.get("format") == "parquet":
        return pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    return [
        {name: int(cell) if name in NUMBERS else cell or None for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(content.decode(), newline=""))
    ]


def totals(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [sum(row[name] for row in rows) for name in NUMBERS]


def by(rows: Sequence[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[int]]:
    """Sums by group, but of groups that come to nothing."""
    groups: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        sums = groups.setdefault(tuple(row.get(name) for name in names), Counter())
        for name in NUMBERS:
            sums[name] += row[name]
    summed = {group: [sums[name] for name in NUMBERS] for group, sums in groups.items()}
    return {group: sums for group, sums in summed.items() if any(sums)}


async def of_the_reports(reports: UsageReports, tenant: str, span: dict[str, int]) -> list[int]:
    sums: Counter[str] = Counter()
    page: str | None = None
    while True:
        usage = await reports.completions(tenant, page=page, bucket_width="1h", limit=100, **span)
        for bucket in usage["data"]:
            for result in bucket["results"]:
                sums["num_requests"] += result["num_model_requests"]
                for name in COUNTS[1:4]:
                    sums[name] += result[name]
        page = usage["next_page"]
        if page is None:
            break
    costs = await reports.costs.page(tenant, group_by=["line_item"], **span)
    sums["cost_micro_usd"] = sum(
        result["amount_micro_usd"] for bucket in costs["data"] for result in bucket["results"]
    )
    return [sums[name] for name in COUNTS]


@settings(
    max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(booked=bookings())
async def test_exports_reports_and_the_ledger_are_equal(
    database: Database, redis_client: redis.asyncio.Redis, booked: Booked
) -> None:
    serial = await redis_client.incr("tenants")
    tenants = TenantService(database, redis_client)
    tenant = (await tenants.create_tenant(f"tenant-{serial}")).id
    await book(database, tenant, booked)
    reports = UsageReports(database)
    for start, end in ((START, END), (START + DAY // 2 + 60, END - DAY - 60)):
        span = {"start_time": start, "end_time": end}
        async with database.read(tenant) as session:
            rows = (await session.execute(text(ROWS), {"start": start, "end": end})).all()
        expected = [sum(int(row[place]) for row in rows) for place in range(6)]
        assert await of_the_reports(reports, tenant, span) == expected[:5]
        ledger = await table(reports, tenant, **span)
        assert len(ledger) == len(rows)
        assert totals(ledger) == expected
        parquet = await table(reports, tenant, format="parquet", **span)
        assert [{**row, **{name: row[name] for name in NUMBERS}} for row in parquet] == parquet
        assert totals(parquet) == expected
        assert [row["id"] for row in parquet] == [row["id"] for row in ledger]
        requests = [row for row in ledger if row["kind"] in ("request", "reversal") and row["model"]]
        for groups in ((), ("api_key_id",), GROUPS):
            asked = {"group_by": list(groups), "bucket_width": "1d", **span}
            grouped = await table(reports, tenant, **asked)
            assert totals(grouped) == expected
            assert grouped == [
                row | {name: moment_text(row[name]) for name in ("start_time", "end_time")}
                for row in await table(reports, tenant, format="parquet", **asked)
            ]
            alone = [row for row in grouped if row["kind"] == "request"]
            assert by(alone, *groups) == by(requests, *groups)


def moment_text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


async def test_what_is_in_a_row(database: Database, redis_client: redis.asyncio.Redis) -> None:
    tenant = (await TenantService(database, redis_client).create_tenant("acme")).id
    one = {
        "at": START + 0.5,
        "usage": Usage(100, 60, 10, reasoning_tokens=4),
        "rate": Rate("prc_1", 1_000_000, 500_000, 2_000_000, 175),
        "model": "sapling:pirate@1",
        "tier": "priority",
        "project_id": "proj_1",
        "user_id": "user_1",
        "adapter_id": "adp_1",
        "adapter_version": "1",
    }
    await book(
        database,
        tenant,
        Booked([one], [("adapter_storage", START, 5 * 10**9, 700)], [(0, START + DAY)], [(0, START + DAY)]),
    )
    reports = UsageReports(database)
    used, stored, *back = await table(reports, tenant, format="parquet")
    assert {name: value for name, value in used.items() if value is not None} == {
        "kind": "request",
        "id": used["id"],
        "at": datetime.fromtimestamp(START + 0.5, UTC),
        "project_id": "proj_1",
        "user_id": "user_1",
        "api_key_id": "key_1",
        "endpoint": "chat.completions",
        "model": "sapling:pirate@1",
        "adapter_id": "adp_1",
        "adapter_version": 1,
        "service_tier": "priority",
        "num_requests": 1,
        "input_tokens": 100,
        "input_cached_tokens": 60,
        "output_tokens": 10,
        "num_choices": 1,
        "finish_reason": "stop",
        "queue_seconds": 0.25,
        "first_token_seconds": 0.5,
        "total_seconds": 1.5,
        "preemptions": 0,
        "price_id": "prc_1",
        "input_price": 1_000_000,
        "cached_input_price": 500_000,
        "output_price": 2_000_000,
        "price_percent": 175,
        "cost_micro_usd": 158,
        "reasoning_tokens": 4,
        "share_input_price": 0,
        "share_output_price": 0,
        "surcharge_micro_usd": 0,
    }
    assert (stored["kind"], stored["quantity"], stored["cost_micro_usd"], stored["reference"]) == (
        "adapter_storage",
        5 * 10**9,
        700,
        "adp_a@1",
    )
    assert sorted(
        (row["reverses"], row["cost_micro_usd"], row["reasoning_tokens"]) for row in back
    ) == sorted([(used["id"], -158, -4), (stored["id"], -700, 0)])
    text_of_csv = (await exported(reports, tenant)).decode()
    assert ",'=cmd|' /C calc'!A0,-4,,,,,0\r\n" in text_of_csv, "no spreadsheet runs a reason"
    assert await table(reports, "tnt_other") == []


async def test_sums_have_the_reasoning_tokens_of_their_group(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = (await TenantService(database, redis_client).create_tenant("acme")).id

    def thinking(at: float, tokens: int, key: str, **labels: str) -> dict[str, Any]:
        return {"at": START + at, "usage": Usage(10, 0, 50, reasoning_tokens=tokens), "key": key, **labels}

    requests = [
        thinking(60, 1, "key_1", project_id="a"),
        thinking(3_700, 20, "key_1", project_id="a"),
        thinking(3_800, 30, "key_2"),
        thinking(DAY + 30, 7, "key_2"),
    ]
    back = [(1, START + 2 * DAY)]
    await book(database, tenant, Booked(requests, [("adapter_storage", START, 5, 700)], reversed=back))
    reports = UsageReports(database)

    async def summed(*groups: str, **asked: Any) -> dict[tuple[Any, ...], int]:
        rows = await table(reports, tenant, group_by=groups, **asked)
        assert next(reversed(rows[0])) == "reasoning_tokens"
        return {
            (row["start_time"][8:13], *(row[name] for name in groups)): row["reasoning_tokens"]
            for row in rows
            if row["kind"] == "request"
        }

    assert await summed(bucket_width="1d") == {("30T00",): 51, ("31T00",): 7, ("01T00",): -20}
    assert await summed("project_id", "api_key_id") == {
        ("30T00", "a", "key_1"): 21,
        ("30T00", None, "key_2"): 30,
        ("31T00", None, "key_2"): 7,
        ("01T00", "a", "key_1"): -20,
    }
    hours = {"bucket_width": "1h", "start_time": START + 3_600}
    assert await summed(**hours, slice=Slice(project_ids=("",))) == {("30T01",): 30, ("31T00",): 7}
    assert await summed(**hours, slice=Slice(excluded_key_ids=("key_2",))) == {
        ("30T01",): 20,
        ("01T00",): -20,
    }


async def test_rows_of_one_moment_are_all_there_whatever_the_page(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(database, [request("tnt_a", START + 0.25, usage=Usage(1, 0, 1)) for _ in range(25)])
    whole = await table(UsageReports(database), "tnt_a")
    assert len({row["id"] for row in whole}) == 25
    for size in (1, 5, 7, 25):
        pages = ledger_table.ledger_pages(
            database, "tnt_a", datetime.fromtimestamp(START, UTC), datetime.fromtimestamp(END, UTC), size
        )
        read = [len(page) async for page in pages]
        assert sum(read) == 25
        assert max(read) == size


async def test_a_slow_reader_holds_no_connection_and_no_more_than_a_page(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(
        database, [request("tnt_a", START + number * 60.0, usage=Usage(10, 0, 5)) for number in range(2500)]
    )
    export = await UsageReports(database).exports.open("tnt_a", format="csv", start_time=START, end_time=END)
    sizes = []
    with Statements(database) as statements:
        async for piece in export.pieces:
            assert database.checked_out == 0
            await asyncio.sleep(0.01)
            assert database.checked_out == 0
            sizes.append(piece.count(b"\r\n"))
            if len(sizes) == 1:
                assert len(statements.seen) == 1, "the second page is not read before the first is taken"
    assert sizes == [501, 500, 500, 500, 500, 0]


async def test_a_database_that_goes_away_ends_the_file_without_an_end(database: Database) -> None:
    await write(
        database, [request("tnt_a", START + number * 60.0, usage=Usage(10, 0, 5)) for number in range(1500)]
    )
    reports = UsageReports(database)
    export = await reports.exports.open("tnt_a", format="parquet", start_time=START, end_time=END)
    await anext(export.pieces)
    await database.close()
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    database.engine = away.engine
    with pytest.raises(DatabaseUnavailable):
        async for _ in export.pieces:
            pass
    with pytest.raises(DatabaseUnavailable):
        await exported(reports, "tnt_a")


async def test_years_without_usage_cost_no_statements(database: Database) -> None:
    await write(database, [request("tnt_a", START + 60.0, usage=Usage(10, 0, 5))])
    reports = UsageReports(database)
    whole = {"bucket_width": "1h", "start_time": 0, "end_time": MAX_TIME}
    with Statements(database) as statements:
        found = await exported(reports, "tnt_a", **whole)
        assert await exported(reports, "tnt_b", **whole)
    assert found.count(b",request,") == 1
    assert len(statements.seen) < 20


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"format": "xlsx"}, "format"),
        ({"group_by": ["tenant_id"]}, "group_by"),
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"start_time": -1}, "start_time"),
        ({"end_time": START}, "end_time"),
    ],
)
async def test_a_wrong_question_names_its_field(wrong: dict[str, Any], field: str) -> None:
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    with pytest.raises(InvalidReportQuery) as caught:
        await exported(UsageReports(away), "tnt_a", **wrong)
    assert caught.value.field == field
    await away.close()
