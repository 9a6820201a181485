"""Slices of usage: that they are the reports' own figures, and that the requests behind them are found."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from billing.errors import InvalidReportQuery
from billing.rates import Rate
from billing.reports.buckets import instant
from billing.reports.grouping import COLUMNS
from billing.reports.slices import WHOLE, RequestPosition, Slice, UsageSlices
from billing.service import UsageReports
from db.session import Database
from engine.protocol import Usage
from tenants.service import TenantService
from tests.support.booked import DAY, START, Booked, book

FULL = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)
HOUR = 3600
END = START + 4 * DAY
SPAN = (instant(START), instant(END))


@pytest.fixture
async def tenant(database: Database, redis_client: redis.asyncio.Redis) -> str:
    tenants = TenantService(database, redis_client)
    tenant, other = await tenants.create_tenant("acme"), await tenants.create_tenant("birch")
    used: dict[str, Any] = {"usage": Usage(1000, 400, 100), "rate": FULL}
    requests = [
        {"at": START + 10, "project_id": "proj_1", **used},
        {"at": START + 20, "key": "key_2", "user_id": "user_1", **used},
        {"at": START + 30, "tier": "flex", **used},
        {"at": START + DAY, "model": "sapling:pirate@1", "adapter_id": "adp_a", **used},
        {"at": START + 2 * DAY + 5 * HOUR, "project_id": "proj_1", **used},
    ]
    charges = [("adapter_storage", START + DAY, 2**30, 700), ("calibration", START + DAY, 1, 5000)]
    booked = Booked(requests, charges, [(0, START + 3 * DAY)], [(1, START + 3 * DAY)])
    await book(database, tenant.id, booked)
    await book(database, other.id, Booked([{"at": START + 10, **used}], [], [], []))
    return tenant.id


@pytest.fixture
def slices(database: Database) -> UsageSlices:
    return UsageSlices(database)


async def test_sums_are_those_of_the_reports(database: Database, slices: UsageSlices, tenant: str) -> None:
    reports = UsageReports(database)
    for group in (None, *COLUMNS):
        asked: dict[str, Any] = {"start_time": START, "end_time": END, "group_by": [group] if group else []}
        expected: dict[tuple[int, str], list[int]] = {}
        for bucket in (await reports.completions(tenant, **asked))["data"]:
            for one in bucket["results"]:
                sums = expected.setdefault((bucket["start_time"], (group and one[group]) or ""), [0] * 5)
                counted = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
                sums[:4] = [one[name] for name in counted]
        for bucket in (await reports.costs.page(tenant, **asked))["data"]:
            for one in bucket["results"]:
                sums = expected.setdefault((bucket["start_time"], (group and one[group]) or ""), [0] * 5)
                sums[4] = one["amount_micro_usd"]
        found: dict[tuple[int, str], list[int]] = {}
        for used in (await slices.look(tenant, *SPAN, unit="day", group_by=group)).used:
            sums = found.setdefault((int(used.bucket.timestamp()), used.group), [0] * 5)
            measures = ("requests", "input_tokens", "cached_tokens", "output_tokens", "cost")
            for place, name in enumerate(measures):
                sums[place] += getattr(used, name)
        assert found == expected, group
        assert sum(sums[4] for sums in found.values()) != 0


async def test_filters_narrow_and_leave_charges_out(slices: UsageSlices, tenant: str) -> None:
    async def total(slice: Slice) -> tuple[int, int]:
        found = (await slices.look(tenant, *SPAN, unit="hour", slice=slice)).used
        return sum(one.requests for one in found), sum(one.cost for one in found)

    one = FULL.cost(Usage(1000, 400, 100))
    assert await total(WHOLE) == (4, 4 * one + 700)
    assert await total(Slice(project_ids=("proj_1",))) == (1, one)
    assert await total(Slice(key_ids=("key_2", "key_1"), service_tiers=("flex", "default"))) != (0, 0)
    assert await total(Slice(service_tiers=("flex",))) == (1, one)
    assert await total(Slice(adapter_ids=("adp_a",), user_ids=("nobody",))) == (0, 0)
    assert await total(Slice(adapter_ids=("",))) == (3, 3 * one)
    with pytest.raises(InvalidReportQuery, match="models: has a zero byte"):
        await total(Slice(models=("\x00",)))


async def test_values_are_those_in_the_days_of_the_tenant_alone(slices: UsageSlices, tenant: str) -> None:
    looked = await slices.look(tenant, *SPAN, unit="day", slice=Slice(models=("gone",)))
    assert not looked.used
    assert looked.has_any_usage
    found = looked.values
    assert set(found) == set(COLUMNS)
    assert ("flex", 1) in found["service_tier"]
    assert found["adapter_id"] == [("", 3), ("adp_a", 1)]
    assert dict(found["user_id"])["user_1"] == 1
    minutes = instant(START - 60), instant(END - HOUR // 2)
    assert (await slices.look(tenant, *minutes, unit="day")).values == found
    later = await slices.look(tenant, SPAN[1], instant(END + DAY), unit="day")
    assert later.values["model"] == []
    assert later.has_any_usage
    assert not (await slices.look("tnt_new", *SPAN, unit="day")).has_any_usage


async def test_requests_come_newest_first_and_page_by_page(slices: UsageSlices, tenant: str) -> None:
    whole = await slices.requests(tenant, *SPAN)
    assert whole.next is None
    times = [row.submitted_at.timestamp() - START for row in whole.rows]
    assert times == sorted(times, reverse=True)
    assert len(times) == 5
    assert {row.request_id for row in whole.rows[-1:]} == set(whole.reversed_ids)
    paged: list[str] = []
    after: RequestPosition | None = None
    while True:
        page = await slices.requests(tenant, *SPAN, after=after, limit=2)
        paged += [row.request_id for row in page.rows]
        if (after := page.next) is None:
            break
        assert len(page.rows) == 2
    assert paged == [row.request_id for row in whole.rows]
    assert not (await slices.requests(tenant, SPAN[1], instant(END + DAY))).rows


async def test_requests_of_a_slice_are_found_hours_apart(slices: UsageSlices, tenant: str) -> None:
    slice = Slice(project_ids=("proj_1",))
    whole = await slices.requests(tenant, *SPAN, slice=slice)
    assert [row.submitted_at.timestamp() - START for row in whole.rows] == [2 * DAY + 5 * HOUR, 10]
    first = await slices.requests(tenant, *SPAN, slice=slice, limit=1)
    assert [row.request_id for row in first.rows] == [whole.rows[0].request_id]
    second = await slices.requests(tenant, *SPAN, slice=slice, after=first.next, limit=1)
    assert [row.request_id for row in second.rows] == [whole.rows[1].request_id]
    assert second.next is None
    without = await slices.requests(tenant, *SPAN, slice=Slice(adapter_ids=("",)))
    assert len(without.rows) == 4
    assert not (await slices.requests(tenant, *SPAN, slice=Slice(models=("gone",)))).rows


async def test_hours_with_nothing_but_reversals_hide_no_request(
    database: Database, slices: UsageSlices, tenant: str
) -> None:
    """In the sums of an hour there may be something of a slice, and no request of it."""
    used: dict[str, Any] = {"usage": Usage(10, 0, 1), "rate": FULL, "project_id": "proj_9"}
    requests = [{"at": START + DAY + minute * 60, **used} for minute in range(4)]
    reversals = [(number, START + (3 + number) * DAY) for number in range(4)]
    await book(database, tenant, Booked(requests, [], reversals, []))
    page = await slices.requests(
        tenant, SPAN[0], instant(START + 9 * DAY), slice=Slice(project_ids=("proj_9",)), limit=1
    )
    assert len(page.rows) == 1
    assert page.next is not None
