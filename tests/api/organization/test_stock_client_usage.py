"""`client.admin.organization.usage.*` of the stock client, blocking and asynchronous, over a real ledger; and
what we serve beside it: receipts and exports.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import httpx
import openai
import pyarrow.parquet
import pytest

from billing.rates import Rate
from engine.protocol import Usage
from tests.api.organization.site import Party, Site
from tests.support.booked import DAY, START, Booked, book, request, write

RATE = Rate("prc_1", 1_000_000, 500_000, 2_000_000)
HALF = Rate("prc_1", 1_000_000, 500_000, 2_000_000, 50)
ONE = 60 + 20 + 20
"""Micro-USD of a request."""
USED = Usage(100, 40, 10)


@pytest.fixture
def booked(site: Site, ours: Party) -> Booked:
    """Three days of usage of two keys; two requests an hour apart on the first."""
    requests: list[dict[str, Any]] = [
        {"at": START + 1.0, "project_id": ours.project_id, "user_id": "user_1"},
        {
            "at": START + 3601.0,
            "key": "key_2",
            "tier": "flex",
            "rate": HALF,
            "model": "sapling:pirate@1",
            "adapter_id": "adp_a",
        },
        {"at": START + 2.0 * DAY},
    ]
    made = Booked(
        [{"usage": USED, "rate": RATE} | one for one in requests], [("calibration", START + DAY, 1, 5000)]
    )
    site.do(book(site.database, ours.tenant_id, made))
    return made


def pages(ask: Any, **query: Any) -> list[Any]:
    """The buckets of all pages, asked for one by one as the client's own paging does."""
    buckets, page = [], openai.omit
    while True:
        answer = ask(page=page, **query)
        buckets += answer.data
        assert answer.has_more is (answer.next_page is not None)
        if not answer.has_more:
            return buckets
        page = answer.next_page


def test_usage_of_completions(organization: Any, ours: Party, booked: Booked) -> None:
    ask = organization.usage.completions
    days = pages(ask, start_time=START, end_time=START + 3 * DAY, bucket_width="1d", limit=1)
    assert [(day.start_time, day.end_time) for day in days] == [
        (START + number * DAY, START + (number + 1) * DAY) for number in range(3)
    ]
    assert [[result.num_model_requests for result in day.results] for day in days] == [[2], [], [1]]
    first = days[0].results[0]
    assert (first.input_tokens, first.input_cached_tokens, first.output_tokens) == (200, 80, 20)
    hours = pages(ask, start_time=START, end_time=START + 2 * 3600, bucket_width="1h", limit=1)
    assert [hour.results[0].num_model_requests for hour in hours] == [1, 1]
    minutes = pages(ask, start_time=START, end_time=START + 120, bucket_width="1m")
    assert [len(minute.results) for minute in minutes] == [1, 0]
    fields = ["project_id", "user_id", "api_key_id", "model", "service_tier", "batch", "api_source"]
    one, two = ask(start_time=START, end_time=START + DAY, group_by=fields).data[0].results
    assert [getattr(one, name) for name in fields] == [
        None, None, "key_2", "sapling:pirate@1", "flex", False, "unlabeled",
    ]  # fmt: skip
    assert [getattr(two, name) for name in fields] == [
        ours.project_id, "user_1", "key_1", "sapling", "default", False, "unlabeled",
    ]  # fmt: skip
    for filtered, count in (
        ({"project_ids": [ours.project_id]}, 1),
        ({"user_ids": ["user_1", "user_2"]}, 1),
        ({"api_key_ids": ["key_1"]}, 1),
        ({"models": ["sapling", "sapling:pirate@1"]}, 2),
        ({"batch": True}, 0),
    ):
        results = ask(start_time=START, end_time=START + DAY, **filtered).data[0].results
        assert sum(result.num_model_requests for result in results) == count, filtered
    by_adapter = ask(
        start_time=START,
        end_time=START + DAY,
        group_by=["adapter_id"],
        extra_query={"adapter_ids": ["adp_a"]},
    )
    assert [result.adapter_id for result in by_adapter.data[0].results] == ["adp_a"]


def test_costs(organization: Any, ours: Party, booked: Booked) -> None:
    ask = organization.usage.costs
    days = pages(ask, start_time=START, end_time=START + 3 * DAY, limit=2)
    amounts = [[(result.amount.value, result.amount.currency) for result in day.results] for day in days]
    assert amounts == [[(0.00015, "usd")], [(0.005, "usd")], [(0.0001, "usd")]]
    assert days[0].results[0].amount_micro_usd == 150
    items = pages(ask, start_time=START, end_time=START + 2 * DAY, group_by=["line_item", "project_id"])
    shown = {
        (result.line_item, result.project_id): (
            result.amount_micro_usd,
            result.quantity,
            result.quantity_unit,
        )
        for day in items
        for result in day.results
    }
    assert shown["sapling, input_tokens", ours.project_id] == (60, 60, "tokens")
    assert shown["sapling:pirate@1, flex, output_tokens", None] == (10, 10, "tokens")
    assert shown["calibration", None] == (5000, 1, None)
    one = ask(start_time=START, line_items=["calibration"], end_time=START + 3 * DAY)
    assert [[result.amount_micro_usd for result in day.results] for day in one.data] == [[], [5000], []]
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(start_time=START, limit=181)
    assert wrong.value.param == "limit"


def test_receipts(site: Site, ours: Party, sdk: Any) -> None:
    own = request(ours.tenant_id, START, usage=USED, rate=RATE, project_id=ours.project_id)
    others = request(ours.tenant_id, START, usage=USED, rate=RATE, project_id="proj_other")
    site.do(write(site.database, [own, others]))
    theirs = site.party(f"theirs-of-{ours.name}")
    for key, seen in (
        (ours.key, [own]),
        (ours.admin_key, [own, others]),
        (theirs.key, []),
        (theirs.admin_key, []),
    ):
        for event in (own, others):
            answer = site.ask("GET", f"/v1/generations/{event.request_id}", key)
            if event in seen:
                assert answer.status_code == 200
                assert (answer.json()["id"], answer.json()["cost_micro_usd"]) == (event.request_id, ONE)
            else:
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert sdk.get(f"/generations/{own.request_id}", cast_to=dict)["usage"]["total_tokens"] == 110
    narrow = site.ask(
        "POST",
        f"/v1/organization/projects/{ours.project_id}/api_keys",
        ours.admin_key,
        {"name": "narrow", "scopes": ["models.read"]},
    ).json()["value"]
    refused = site.ask("GET", f"/v1/generations/{own.request_id}", narrow)
    assert refused.status_code == 403
    assert "generations.read" in refused.text
    assert site.ask("GET", f"/v1/generations/{own.request_id}?colour=red", ours.key).status_code == 400


def test_exports(site: Site, ours: Party, booked: Booked) -> None:
    path = f"/v1/organization/usage/export?start_time={START}&end_time={START + 3 * DAY}"
    answer = site.ask("GET", path, ours.admin_key)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == (
        'attachment; filename="usage-20261030T0000Z-20261102T0000Z.csv"'
    )
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["kind"] for row in rows] == ["request", "request", "request", "calibration"]
    assert sum(int(row["cost_micro_usd"]) for row in rows) == 2 * ONE + ONE // 2 + 5000
    answer = site.ask("GET", f"{path}&format=parquet&group_by=model&group_by[]=api_key_id", ours.admin_key)
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    grouped = pyarrow.parquet.read_table(io.BytesIO(answer.content))
    assert grouped.column_names[3:5] == ["api_key_id", "model"]
    assert sum(grouped["cost_micro_usd"].to_pylist()) == 2 * ONE + ONE // 2 + 5000
    for query, param in (
        ("format=xlsx", "format"),
        ("bucket_width=1w", "bucket_width"),
        ("colour=red", "colour"),
    ):
        refused = site.ask("GET", f"{path}&{query}", ours.admin_key)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_an_export_that_fails_in_the_middle_is_no_whole_answer(
    site: Site, ours: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [request(ours.tenant_id, START + number * 1.0, usage=USED, rate=RATE) for number in range(2500)]
    site.do(write(site.database, events))
    read = type(site.database).read
    reads = 0

    def failing(database: Any, tenant: str) -> Any:
        nonlocal reads
        if tenant == ours.tenant_id:
            reads += 1
            if reads == 2:
                raise ConnectionError("cut")
        return read(database, tenant)

    path = f"/v1/organization/usage/export?start_time={START}&end_time={START + DAY}"
    assert site.ask("GET", path, ours.admin_key).text.count("\r\n") == 2501
    monkeypatch.setattr(type(site.database), "read", failing)
    with pytest.raises(httpx.RemoteProtocolError):
        site.ask("GET", path, ours.admin_key)
    assert reads == 2
