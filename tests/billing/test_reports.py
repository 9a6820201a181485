from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from openai.types.admin.organization import UsageCompletionsResponse
from sqlalchemy import event

from billing.errors import InvalidReportQuery
from billing.folding import fold, measure
from billing.repository import LedgerWriter
from billing.service import UsageReports
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from tests.support.journal import usage_event

DAY = 86_400
START = int(datetime(2026, 11, 2, tzinfo=UTC).timestamp())


def used(
    serial: int,
    at: int,
    *,
    tenant: str = "tnt_a",
    key: str = "key_1",
    model: str = "sapling",
    tier: str = "default",
    **labels: str,
) -> Any:
    labels |= {"key_id": key, "model": model, "service_tier": tier}
    return usage_event(
        f"req-{serial}",
        100,
        10,
        60,
        tenant=tenant,
        submitted_at=float(at) + 0.5,
        recorded_at=at + 1.0,
        labels=labels,
    )


@pytest.fixture
async def reports(database: Database) -> UsageReports:
    events = [
        used(0, START),
        used(1, START + 59, key="key_2", project_id="proj_2", user_id="user_1"),
        used(2, START + 60, model="sapling:pirate@1", project_id="proj_2", adapter_id="adp_p"),
        used(3, START + 3600, tier="flex"),
        used(4, START + 2 * DAY),
        used(5, START, tenant="tnt_b"),
    ]
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(measure(event) for event in events))
    return UsageReports(database)


def results(page: dict[str, Any], *fields: str) -> list[list[tuple[Any, ...]]]:
    return [
        [tuple(result[field] for field in fields) for result in bucket["results"]] for bucket in page["data"]
    ]


async def test_days_with_and_without_usage(reports: UsageReports) -> None:
    page = await reports.completions("tnt_a", start_time=START, end_time=START + 3 * DAY)
    assert page["object"] == "page"
    assert page["has_more"] is False
    assert page["next_page"] is None
    assert [(b["object"], b["start_time"], b["end_time"]) for b in page["data"]] == [
        ("bucket", START + i * DAY, START + (i + 1) * DAY) for i in range(3)
    ]
    assert results(page, "num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens") == [
        [(4, 400, 240, 40)],
        [],
        [(1, 100, 60, 10)],
    ]


async def test_the_stock_client_reads_it(reports: UsageReports) -> None:
    page = await reports.completions(
        "tnt_a",
        start_time=START,
        end_time=START + DAY,
        group_by=["model", "api_key_id", "service_tier", "batch"],
    )
    read = UsageCompletionsResponse.model_validate(page, strict=True)
    first = read.data[0].results[0]
    assert first.object == "organization.usage.completions.result"
    known = set(type(first).model_fields)
    assert set(page["data"][0]["results"][0]) <= known, "no field the client does not know"


async def test_buckets_by_hour_and_minute(reports: UsageReports) -> None:
    hours = await reports.completions("tnt_a", start_time=START, end_time=START + 2 * 3600, bucket_width="1h")
    assert results(hours, "num_model_requests") == [[(3,)], [(1,)]]
    minutes = await reports.completions("tnt_a", start_time=START, end_time=START + 180, bucket_width="1m")
    assert results(minutes, "num_model_requests") == [[(2,)], [(1,)], []]


async def test_grouping_splits_and_names(reports: UsageReports) -> None:
    page = await reports.completions(
        "tnt_a", start_time=START, end_time=START + DAY, group_by=["api_key_id", "service_tier"]
    )
    assert sorted(results(page, "api_key_id", "service_tier", "model", "num_model_requests")[0]) == [
        ("key_1", "default", None, 2),
        ("key_1", "flex", None, 1),
        ("key_2", "default", None, 1),
    ]
    page = await reports.completions(
        "tnt_a",
        start_time=START,
        end_time=START + DAY,
        group_by=["project_id", "user_id", "batch", "api_source"],
    )
    fields = ("project_id", "user_id", "batch", "api_source", "num_model_requests")
    assert results(page, *fields) == [
        [
            (None, None, False, "unlabeled", 2),
            ("proj_2", None, False, "unlabeled", 1),
            ("proj_2", "user_1", False, "unlabeled", 1),
        ]
    ]
    page = await reports.completions("tnt_a", start_time=START, end_time=START + DAY, group_by=["adapter_id"])
    assert results(page, "adapter_id", "num_model_requests") == [[(None, 3), ("adp_p", 1)]]


FILTERS: list[tuple[dict[str, Any], int]] = [
    ({"api_key_ids": ["key_2"]}, 1),
    ({"api_key_ids": ["key_1", "key_2"]}, 4),
    ({"api_key_ids": ["key_of_somebody"]}, 0),
    ({"models": ["sapling:pirate@1"]}, 1),
    ({"models": ["sapling"], "api_key_ids": ["key_1"]}, 2),
    ({"project_ids": ["proj_x"]}, 0),
    ({"project_ids": ["proj_2"]}, 2),
    ({"user_ids": ["user_x"]}, 0),
    ({"user_ids": ["user_1"], "project_ids": ["proj_2", "proj_3"]}, 1),
    ({"adapter_ids": ["adp_p"]}, 1),
    ({"batch": True}, 0),
    ({"batch": False}, 4),
    ({"api_key_ids": []}, 4),
    ({"models": ["'; DROP TABLE usage_records; --"]}, 0),
]


async def test_filters(reports: UsageReports) -> None:
    for filters, requests in FILTERS:
        page = await reports.completions("tnt_a", start_time=START, end_time=START + DAY, **filters)
        counted = sum(result["num_model_requests"] for result in page["data"][0]["results"])
        assert counted == requests, filters


async def test_another_tenants_usage_is_not_there(reports: UsageReports) -> None:
    page = await reports.completions("tnt_b", start_time=START, end_time=START + 3 * DAY)
    assert results(page, "num_model_requests") == [[(1,)], [], []]
    page = await reports.completions("tnt_c", start_time=START, end_time=START + DAY)
    assert results(page, "num_model_requests") == [[]]


async def test_pages_join_without_gap_or_overlap(reports: UsageReports) -> None:
    whole = await reports.completions("tnt_a", start_time=START, end_time=START + 3 * DAY, limit=31)
    joined, page = [], None
    for _ in range(3):
        part = await reports.completions(
            "tnt_a", start_time=START, end_time=START + 3 * DAY, limit=1, page=page
        )
        assert len(part["data"]) == 1
        assert part["has_more"] is (part["next_page"] is not None)
        joined += part["data"]
        page = part["next_page"]
    assert page is None
    assert joined == whole["data"]


async def test_partial_buckets_say_what_they_hold(reports: UsageReports) -> None:
    page = await reports.completions("tnt_a", start_time=START + 61, end_time=START + DAY + 10)
    assert [(b["start_time"], b["end_time"]) for b in page["data"]] == [
        (START + 60, START + DAY),
        (START + DAY, START + DAY + 60),
    ]
    assert results(page, "num_model_requests") == [[(2,)], []]


async def test_without_an_end_it_reports_until_now(database: Database) -> None:
    now = datetime.now(UTC).timestamp()
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert([measure(used(0, int(now)))])
    page = await UsageReports(database).completions(
        "tnt_a", start_time=int(now) - 3 * 3600, bucket_width="1h"
    )
    assert page["data"][-1]["end_time"] >= now
    assert sum(len(bucket["results"]) for bucket in page["data"]) == 1
    ahead = await UsageReports(database).completions("tnt_a", start_time=int(now) + DAY)
    assert ahead["data"] == []


@pytest.mark.parametrize(("width", "default", "most"), [("1m", 60, 1440), ("1h", 24, 168), ("1d", 7, 31)])
async def test_limits_are_openais(reports: UsageReports, width: str, default: int, most: int) -> None:
    span = {"start_time": START, "end_time": START + 400 * DAY, "bucket_width": width}
    assert len((await reports.completions("tnt_a", **span))["data"]) == default
    assert len((await reports.completions("tnt_a", limit=most, **span))["data"]) == most
    with pytest.raises(InvalidReportQuery, match="limit"):
        await reports.completions("tnt_a", limit=most + 1, **span)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"group_by": ["tenant_id"]}, "group_by"),
        ({"limit": 0}, "limit"),
        ({"start_time": -1}, "start_time"),
        ({"start_time": 2**63}, "start_time"),
        ({"end_time": START}, "end_time"),
        ({"end_time": 2**63}, "end_time"),
        ({"page": "page_"}, "page"),
        ({"page": "nonsense"}, "page"),
        ({"page": "page_é"}, "page"),
        ({"page": "page_MTc5NA"}, "page"),
        ({"models": ["a\x00"]}, "models"),
        ({"api_key_ids": ["k"] * 1001}, "api_key_ids"),
        ({"adapter_ids": ["a" * 513]}, "adapter_ids"),
    ],
)
async def test_a_wrong_question_names_its_field(
    reports: UsageReports, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidReportQuery) as caught:
        await reports.completions("tnt_a", **({"start_time": START, "end_time": START + DAY} | wrong))
    assert caught.value.field == field


async def test_the_ledger_itself_is_not_read(reports: UsageReports, database: Database) -> None:
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    await reports.completions("tnt_a", start_time=START, end_time=START + DAY)
    assert any("usage_rollup" in statement for statement in statements)
    assert not any("usage_records" in statement for statement in statements)


async def test_a_database_that_is_away_is_said_to_be() -> None:
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    with pytest.raises(DatabaseUnavailable):
        await UsageReports(away).completions("tnt_a", start_time=START, end_time=START + DAY)
    await away.close()
