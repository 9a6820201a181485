"""Costs in the stock client's shape: line items, groups, filters and what they add up to."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
import redis.asyncio
from openai.types.admin.organization import UsageCostsResponse

from billing.customers.service import CustomerReports, CustomerUse
from billing.errors import InvalidReportQuery
from billing.rates import Rate
from billing.reports.buckets import instant
from billing.service import UsageReports
from billing.totals import LedgerTotals
from db.session import Database
from engine.protocol import Usage
from tenants.service import TenantService
from tests.support.booked import DAY, START, Booked, book

FULL = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)
HALF = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000, 50)
GB = 10**9
SPAN = {"start_time": START, "end_time": START + 4 * DAY}


@pytest.fixture
async def tenant(database: Database, redis_client: redis.asyncio.Redis) -> str:
    tenant = await TenantService(database, redis_client).create_tenant("acme")
    used = Usage(1000, 400, 100)
    requests = [
        {"at": START + 10, "usage": used, "rate": FULL, "project_id": "proj_1"},
        {"at": START + 20, "usage": used, "rate": FULL, "key": "key_2", "user_id": "user_1"},
        {"at": START + 30, "usage": used, "rate": HALF, "tier": "flex"},
        {"at": START + DAY, "usage": used, "rate": FULL, "model": "sapling:pirate@1", "adapter_id": "adp_a"},
        {"at": START + 2 * DAY, "usage": Usage(1, 0, 0), "rate": Rate("prc_1", 1, 1, 1)},
        {"at": START + 2 * DAY, "usage": used},
    ]
    charges = [
        ("adapter_storage", START + DAY, 2**30, 700),
        ("adapter_storage", START + DAY, 2**30, 700),
        ("calibration", START + DAY, 1, 5000),
    ]
    await book(database, tenant.id, Booked(requests, charges, [(0, START + 3 * DAY)], [(2, START + 3 * DAY)]))
    return tenant.id


async def shown(database: Database, tenant: str, *fields: str, **asked: Any) -> list[list[tuple[Any, ...]]]:
    page = await UsageReports(database).costs.page(tenant, **(SPAN | asked))
    read = UsageCostsResponse.model_validate(page, strict=True)
    assert [bucket.start_time for bucket in read.data] == [bucket["start_time"] for bucket in page["data"]]
    for bucket in page["data"]:
        for result in bucket["results"]:
            assert result["amount"] == {"value": result["amount_micro_usd"] / 1e6, "currency": "usd"}
    return [
        [tuple(result[field] for field in fields) for result in bucket["results"]] for bucket in page["data"]
    ]


ONE = 600 * 3 + 400 + 100 * 5
"""Of a request at full price: 2 700 micro-USD."""


async def test_days_cost_what_their_requests_and_charges_do(database: Database, tenant: str) -> None:
    whole = await shown(database, tenant, "amount_micro_usd", "line_item", "quantity", "project_id")
    assert whole == [
        [(2 * ONE + ONE // 2, None, None, None)],
        [(ONE + 1400 + 5000, None, None, None)],
        [(1, None, None, None)],
        [(-ONE - 5000, None, None, None)],
    ]


async def test_days_of_statements_cost_the_same(
    database: Database, redis_client: redis.asyncio.Redis, tenant: str
) -> None:
    other = await TenantService(database, redis_client).create_tenant("birch")
    await book(database, other.id, Booked([{"at": START, "usage": Usage(9, 0, 9), "rate": FULL}], [], [], []))
    span = instant(START), instant(START + 4 * DAY)
    async with database.read(tenant) as session:
        totals = LedgerTotals(session, tenant)
        found = await totals.by_day(*span)
        expected: dict[date, int] = {}
        for line in await totals.costs(*span, unit="day", group_by=()):
            day = line.bucket.date()
            expected[day] = expected.get(day, 0) + line.cost
        assert found == expected
        assert [*found.values()].count(0) == 0
        assert await totals.by_day(instant(START + DAY), instant(START + 2 * DAY)) == {
            instant(START + DAY).date(): ONE + 6400
        }


async def test_customers_used_what_each_of_them_did(
    database: Database, redis_client: redis.asyncio.Redis, tenant: str
) -> None:
    other = await TenantService(database, redis_client).create_tenant("birch")
    reports, last = CustomerReports(database), instant(START + 3 * DAY)
    october = await reports.month([tenant, other.id], instant(START + DAY))
    assert october[tenant] == CustomerUse(4, 4000, 400, 3 * ONE + ONE // 2 + 1400 + 5000, last)
    assert october[other.id] == CustomerUse()
    november = await reports.month([tenant, other.id], instant(START + 5 * DAY))
    assert november[tenant] == CustomerUse(1, 1, 0, 1 - ONE - 5000, last)


async def test_line_items_tell_kinds_of_tokens_classes_and_charges_apart(
    database: Database, tenant: str
) -> None:
    items = await shown(
        database, tenant, "line_item", "amount_micro_usd", "quantity", "quantity_unit", group_by=["line_item"]
    )
    assert [sorted(bucket) for bucket in items] == [
        sorted(
            [
                ("sapling, input_tokens", 3600, 1200, "tokens"),
                ("sapling, cached_input_tokens", 800, 800, "tokens"),
                ("sapling, output_tokens", 1000, 200, "tokens"),
                ("sapling, flex, input_tokens", 900, 600, "tokens"),
                ("sapling, flex, cached_input_tokens", 200, 400, "tokens"),
                ("sapling, flex, output_tokens", 250, 100, "tokens"),
            ]
        ),
        sorted(
            [
                ("sapling:pirate@1, input_tokens", 1800, 600, "tokens"),
                ("sapling:pirate@1, cached_input_tokens", 400, 400, "tokens"),
                ("sapling:pirate@1, output_tokens", 500, 100, "tokens"),
                ("adapter_storage", 1400, 48.0, "gibibyte_hours"),
                ("calibration", 5000, 1, None),
            ]
        ),
        sorted(
            [
                ("sapling, input_tokens", 1, 601, "tokens"),
                ("sapling, cached_input_tokens", 0, 400, "tokens"),
                ("sapling, output_tokens", 0, 100, "tokens"),
            ]
        ),
        sorted(
            [
                ("sapling, input_tokens", -1800, -600, "tokens"),
                ("sapling, cached_input_tokens", -400, -400, "tokens"),
                ("sapling, output_tokens", -500, -100, "tokens"),
                ("calibration", -5000, -1, None),
            ]
        ),
    ]
    one = await shown(
        database,
        tenant,
        "line_item",
        "amount_micro_usd",
        line_items=["sapling, flex, input_tokens", "nothing"],
    )
    assert one == [[(None, 900)], [], [], []]


async def test_groups_and_filters(database: Database, tenant: str) -> None:
    day = {"end_time": START + DAY}
    projects = await shown(database, tenant, "project_id", "amount_micro_usd", group_by=["project_id"], **day)
    assert projects == [[(None, ONE + ONE // 2), ("proj_1", ONE)]]
    keys = await shown(
        database,
        tenant,
        "api_key_id",
        "user_id",
        "amount_micro_usd",
        group_by=["api_key_id", "user_id"],
        **day,
    )
    assert keys == [[("key_1", None, ONE + ONE // 2), ("key_2", "user_1", ONE)]]
    tiers = await shown(
        database, tenant, "service_tier", "amount_micro_usd", group_by=["service_tier"], **day
    )
    assert tiers == [[("default", 2 * ONE), ("flex", ONE // 2)]]
    adapters = await shown(
        database, tenant, "adapter_id", "amount_micro_usd", group_by=["adapter_id"], start_time=START + DAY,
        end_time=START + 2 * DAY,
    )  # fmt: skip
    assert adapters == [[(None, 5000), ("adp_a", ONE + 1400)]]
    sources = await shown(database, tenant, "api_source", group_by=["api_source"], **day)
    assert sources == [[("unlabeled",)]]
    of_project = await shown(database, tenant, "amount_micro_usd", project_ids=["proj_1"])
    assert of_project == [[(ONE,)], [], [], [(-ONE,)]], "charges are of no project"
    of_key = await shown(database, tenant, "amount_micro_usd", api_key_ids=["key_2"])
    assert of_key == [[(ONE,)], [], [], []]
    hours = await shown(database, tenant, "amount_micro_usd", bucket_width="1h", end_time=START + 2 * 3600)
    assert hours == [[(2 * ONE + ONE // 2,)], []]
    assert await shown(database, "tnt_other", "amount_micro_usd") == [[], [], [], []]


async def test_pages_join(database: Database, tenant: str) -> None:
    reports = UsageReports(database)
    whole = await reports.costs.page(tenant, limit=180, **SPAN)
    joined, page = [], None
    for _ in range(4):
        part = await reports.costs.page(tenant, limit=1, page=page, **SPAN)
        joined += part["data"]
        page = part["next_page"]
    assert page is None
    assert joined == whole["data"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"bucket_width": "1w"}, "bucket_width"),
        ({"group_by": ["batch"]}, "group_by"),
        ({"limit": 181}, "limit"),
        ({"line_items": ["\x00"]}, "line_items"),
        ({"project_ids": ["p"] * 1001}, "project_ids"),
        ({"page": "page_"}, "page"),
    ],
)
async def test_a_wrong_question_names_its_field(database: Database, wrong: Any, field: str) -> None:
    with pytest.raises(InvalidReportQuery) as caught:
        await UsageReports(database).costs.page("tnt_a", **(SPAN | wrong))
    assert caught.value.field == field
