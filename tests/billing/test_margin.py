"""The operator's margin: how long GPUs were busy, who bears it, and that the lines add up."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidReportQuery
from billing.rates import Rate
from billing.reports.margin import MarginReports, apportion
from cli.billing import adapter_row, margin_figures, margin_rows
from db.session import Database
from engine.protocol import Usage, UsageEvent
from tests.support.booked import charge, request, write

RATE = Rate("prc_1", 1_000_000, 1_000_000, 1_000_000)
USED = Usage(600, 0, 400)
"""1 000 micro-USD."""
HOUR_PRICE = 3_600_000
"""A micro-USD for a millisecond."""
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC)
S = 1_000_000


def ran(
    at: float, seconds: float, *, tenant: str = "tnt_a", engine: str = "engine-0", **more: Any
) -> UsageEvent:
    """On the engine for so many seconds, from a quarter of a second after `at`."""
    event = request(tenant, at, usage=USED, rate=RATE, took=seconds + 0.25, **more)
    return type(event)(
        **{name: getattr(event, name) for name in event.__struct_fields__} | {"engine_id": engine}
    )


async def report(database: Database, **more: Any) -> Any:
    options = {"now": DECEMBER, "gpu_hour_price": HOUR_PRICE, "month": "2026-11"} | more
    return await MarginReports(database).report(
        options.pop("month"), options.pop("gpu_hour_price"), **options
    )


async def test_a_gpu_is_busy_while_anything_runs_and_requests_bear_it_by_the_time_they_ran(
    database: Database,
) -> None:
    await write(
        database,
        [
            ran(NOVEMBER, 10),  # 0 to 10
            ran(NOVEMBER + 5, 10, tenant="tnt_b"),  # 5 to 15: beside it
            ran(NOVEMBER + 6, 1, tenant="tnt_b", tier="flex"),  # within both
            ran(NOVEMBER + 100, 4),  # alone
            ran(NOVEMBER, 20, engine="engine-1"),
            request("tnt_c", NOVEMBER, usage=USED, finish_reason=None),  # still running: not measured yet
        ],
    )
    await charge(database, "tnt_a", 0, "calibration", int(NOVEMBER), 1, 7000)
    margin = await report(database)
    assert margin.num_gpus == 2
    assert margin.busy_us == (15 + 4 + 20) * S
    assert margin.busy_cost == 39_000
    assert margin.paid_us == 2 * 30 * 86_400 * S
    assert margin.idle_cost == 2 * 30 * 86_400_000 - 39_000
    held = {("tnt_a", "default"): 34, ("tnt_b", "default"): 10, ("tnt_b", "flex"): 1}
    shown = {(line.tenant_id, line.service_tier): line for line in margin.lines}
    assert set(shown) == {*held, ("tnt_a", ""), ("tnt_c", "default")}
    for key, seconds in held.items():
        assert abs(shown[key].gpu_us - 39 * S * seconds / 45) <= 1
        assert abs(shown[key].cost - 39_000 * seconds / 45) <= 1
    assert sum(line.gpu_us for line in margin.lines) == margin.busy_us
    assert sum(line.cost for line in margin.lines) == margin.busy_cost
    assert shown["tnt_a", "default"].revenue == 3000
    assert shown["tnt_a", "default"].margin == 3000 - shown["tnt_a", "default"].cost
    assert (shown["tnt_a", ""].revenue, shown["tnt_a", ""].cost) == (7000, 0)
    assert margin.revenue == 5 * 1000 + 7000
    assert margin.margin == sum(line.margin for line in margin.lines) - margin.idle_cost
    assert margin.tokens == 6000
    assert margin.tokens_per_busy_second == 6000 // 39
    assert margin.per_million_tokens(margin.busy_cost) == 39_000 * 1000 // 6
    assert json.loads(json.dumps(margin.as_json()))["margin"] == margin.margin
    rows = margin_rows(margin, {"tnt_a": "acme"})
    assert ("acme", "(charges)", "0", "0", "0", "0.000", "0.007000", "0.000000", "0.007000") in rows
    assert rows[-1] == (
        "(all)",
        "",
        "6",
        "3600",
        "2400",
        "1440.000",
        "0.012000",
        "5184.000000",
        "-5183.988000",
    )
    assert ("cost per million tokens", "6.500000") in margin_figures(margin)


async def test_a_million_tokens_cost_what_their_adapters_requests_held(database: Database) -> None:
    pirate: dict[str, Any] = {"adapter_id": "adp_a", "model": "sapling:pirate@2"}
    await write(
        database,
        [
            ran(NOVEMBER, 10),
            ran(NOVEMBER, 30, **pirate),
            ran(NOVEMBER + 100, 20, tier="flex", **pirate),
            ran(NOVEMBER, 5, tenant="tnt_b", **pirate),
        ],
    )
    margin = await report(database)
    lines = {(line.tenant_id, line.adapter_id): line for line in margin.adapters}
    assert margin.busy_cost == 50_000
    ours, base = lines["tnt_a", "adp_a"], lines["tnt_a", ""]
    assert (ours.model, ours.num_requests, ours.tokens) == ("sapling:pirate", 2, 2000)
    assert abs(ours.cost - 50_000 * 50 / 65) <= 1
    assert ours.per_million_tokens(ours.cost) == round(ours.cost * 1e6 / 2000)
    assert ours.per_million_tokens(ours.revenue) == 1_000_000
    assert base.model == ""
    assert abs(base.cost - 50_000 * 10 / 65) <= 1
    assert sum(line.cost for line in margin.adapters) == margin.busy_cost
    assert sum(line.gpu_us for line in margin.adapters) == margin.busy_us
    assert [line.cost for line in margin.adapters] == sorted(
        (one.cost for one in lines.values()), reverse=True
    )
    assert adapter_row(ours, {"tnt_a": "acme"})[:2] == ("acme", "sapling:pirate")
    assert adapter_row(base, {})[1] == "(base models)"
    assert margin.as_json()["adapters"][0]["cost_per_million_tokens"] == ours.per_million_tokens(ours.cost)


async def test_days_and_months_are_cut_where_they_end(database: Database) -> None:
    midnight = NOVEMBER + 86_400
    await write(
        database,
        [
            ran(NOVEMBER - 10.25, 30),  # 20 of its seconds are November's
            ran(midnight - 5.25, 10),  # over midnight
            ran(midnight - 2.25, 5),  # within it
            ran(DECEMBER.timestamp() - 1.25, 10),  # 1 second
        ],
    )
    margin = await report(database)
    assert margin.busy_us == (20 + 10 + 1) * S
    assert sum(line.gpu_us for line in margin.lines) == margin.busy_us
    assert margin.lines[0].num_requests == 3, "a request counts where it was submitted"
    assert (await report(database, month="2026-10")).busy_us == 10 * S


async def test_a_month_that_runs_is_reported_as_far_as_it_has_come(database: Database) -> None:
    await write(database, [ran(NOVEMBER, 3600)])
    now = datetime(2026, 11, 1, 2, 0, 30, tzinfo=UTC)
    margin = await report(database, now=now)
    assert margin.paid_us == 121 * 60 * S
    assert margin.busy_us == 3600 * S
    assert (await report(database, now=now, num_gpus=3)).paid_us == 3 * 121 * 60 * S
    free = await report(database, now=now, gpu_hour_price=0)
    assert (free.busy_cost, free.idle_cost, free.margin) == (0, 0, 1000)


async def test_a_month_without_requests(database: Database) -> None:
    margin = await report(database)
    assert (margin.revenue, margin.busy_cost, margin.idle_cost, margin.lines) == (0, 0, 0, [])
    assert margin.tokens_per_busy_second is None
    assert margin.per_million_tokens(5) is None
    assert ("tokens per busy GPU second", "-") in margin_figures(margin)
    assert margin_rows(margin, {})[-1][:2] == ("(all)", "")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"month": "2026-13"}, "month"),
        ({"month": "2026-12"}, "month"),
        ({"month": "November"}, "month"),
        ({"gpu_hour_price": -1}, "gpu_hour_price"),
        ({"num_gpus": -1}, "num_gpus"),
    ],
)
async def test_a_wrong_question_names_its_field(wrong: dict[str, Any], field: str) -> None:
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    with pytest.raises(InvalidReportQuery) as caught:
        await report(away, **wrong)
    assert caught.value.field == field
    await away.close()


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), max_size=20))
def test_shares_are_whole_add_up_and_are_fair(amount: int, weights: list[int]) -> None:
    shares = apportion(amount, weights)
    total = sum(weights)
    assert len(shares) == len(weights)
    assert sum(shares) == (amount if total else 0)
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share * total - amount * weight) < max(total, 1)
