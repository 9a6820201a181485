"""The page of usage: its figures are the API's, its rows lead on, its filters narrow, its files are the
export's; requests and receipts; and who may see any of it.
"""

from __future__ import annotations

import csv
import html
import io
import re
from datetime import timedelta
from typing import Any

import httpx
import pyarrow.parquet
import pytest

from admin.usage.query import BY_ID
from billing.reports.costs import CostReports
from billing.request_ids import submitted_at_of
from billing.request_metadata.content import RequestMetadata
from billing.request_metadata.repository import MetadataWriter
from billing.service import UsageReports
from db.session import EVERY_TENANT
from engine.protocol import Usage
from tests.admin.conftest import METADATA, Site, sign_in
from tests.admin.test_keys import XSS, as_role
from tests.admin.using import Using, add_request, days_ago, make_usage
from tests.support.booked import request, write

_ROW = re.compile(r"<tr[^>]*>\s*<th scope=\"row\">(.*?)</th>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
_UNSEEN = re.compile(r'<span class="unseen">.*?</span>')


def text(markup: str) -> str:
    """As it is read: `<wbr>` only says where a word may be broken."""
    seen = _UNSEEN.sub("", markup).replace("<wbr>", "")
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", seen)).split())


def table(page: httpx.Response) -> dict[str, list[str]]:
    """Cells by what stands before them."""
    return {
        text(head): [text(cell) for cell in _CELL.findall(cells)] for head, cells in _ROW.findall(page.text)
    }


def links(page: httpx.Response, words: str) -> list[str]:
    found = re.findall(r'<a[^>]* href="([^"]+)"[^>]*>(.*?)</a>', page.text, re.DOTALL)
    return [html.unescape(href) for href, inner in found if words == text(inner)]


async def reported(site: Site, using: Using, group: str, days: int = 30) -> dict[str, list[int]]:
    """As the API has it, over so many days: by group, requests, input, cached, output, micro-USD."""
    column = BY_ID[group].column
    asked: dict[str, Any] = {
        "start_time": int((using.today - timedelta(days=days - 1)).timestamp()),
        "end_time": int((using.today + timedelta(days=1)).timestamp()),
        "group_by": [column],
        "limit": 31,
    }
    sums: dict[str, list[int]] = {}
    used = await UsageReports(site.place.database).completions(site.tenant_id, **asked)
    for bucket in used["data"]:
        for one in bucket["results"]:
            counted = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
            row = sums.setdefault(one[column] or "", [0] * 5)
            row[:4] = [before + one[name] for before, name in zip(row, counted, strict=False)]
    costs = await CostReports(site.place.database).page(site.tenant_id, **asked)
    for bucket in costs["data"]:
        for one in bucket["results"]:
            sums.setdefault(one[column] or "", [0] * 5)[4] += one["amount_micro_usd"]
    return sums


def cells(sums: list[int], whole: list[int]) -> list[str]:
    """With the share of all tokens at the end."""
    *counts, cost = sums
    share = 100 * (sums[1] + sums[3]) / (whole[1] + whole[3])
    return [*(f"{one:,}" for one in counts), f"${cost / 1e6:,.6f}", f"{share:.1f} %"]


def summed(sums: dict[str, list[int]]) -> list[int]:
    return [sum(one) for one in zip(*sums.values(), strict=True)]


async def test_figures_are_those_of_the_api(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    keys = table(await visitor.get("/usage?group=key"))
    expected = await reported(site, using, "key")
    whole = summed(expected)
    charged = expected.pop("")
    assert keys.pop("Total") == cells(whole, whole)
    assert keys == {
        "laptop View": cells(expected[using.laptop], whole),
        "robot <i> View": cells(expected[using.robot], whole),
        "ada@acme.example console · View": cells(expected[using.person], whole),
        "old one revoked · View": cells(expected[using.revoked], whole),
        "Deleted key key_gone": cells(expected["key_gone"], whole),
        "Adapter storage Not request-based": cells(charged, whole),
    }
    adapters = table(await visitor.get("/usage?group=adapter"))
    expected = await reported(site, using, "adapter")
    assert adapters["pirate View"] == cells(expected[using.adapter], summed(expected))
    assert adapters["Base model"] == cells(expected[""], summed(expected))
    people = table(await visitor.get("/usage?group=user&range=7d"))
    expected = await reported(site, using, "user", 7)
    assert people["ada@acme.example View"] == cells(expected[using.person], summed(expected))
    projects = table(await visitor.get("/usage?group=project"))
    expected = await reported(site, using, "project")
    assert projects["Support <b> View"] == cells(expected[using.project], summed(expected))
    days = table(await visitor.get("/usage"))
    assert next(iter(days)) == f"{using.today:%a}, {using.today:%b} {using.today.day}, {using.today.year}"
    assert sum(int(row[0]) for name, row in days.items() if name != "Total") == int(days["Total"][0])


async def test_rows_lead_to_less_and_to_their_requests(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    page = await visitor.get("/usage?group=tier&show=requests")
    (flex,) = links(page, "Flex")
    narrower = await visitor.get(f"http://127.0.0.1:8000{flex}")
    assert table(narrower)["Total"] == ["4", "8,000", "0", "1,200", "$0.015000", "100.0 %"]
    assert "Service tier</span> Flex" in narrower.text
    assert 'href="/console/usage?show=requests"' in narrower.text, "the chip takes the filter off"
    behind = next(href for href in links(page, "4") if "tier=flex" in href)
    requests = await visitor.get(f"http://127.0.0.1:8000{behind}")
    rows = table(requests)
    assert len(rows) == 4
    assert all(row[2:4] == ["robot <i>", "2,000 in, 300 out"] for row in rows.values())
    (one, *_) = links(requests, next(iter(rows)).rpartition(" 20")[0])  # how long ago, and when
    receipt = await visitor.get(f"http://127.0.0.1:8000{one}")
    assert table(receipt)["Output"] == ["300", "$5.00", "$0.000750"]
    assert table(receipt)["Billed"] == ["2,300", "", "$0.003750"]
    assert "costs 50 %" in receipt.text
    assert f'href="/console/keys/{using.robot}"' in receipt.text
    day = await visitor.get(f"/usage?range=days&from={days_ago(using, 0)}&to={days_ago(using, 0)}")
    assert "by" not in table(day)
    assert next(iter(table(day))).endswith("00:00")
    hour = next(href for href in links(day, "4") if "hour=0" in href)
    assert len(table(await visitor.get(f"http://127.0.0.1:8000{hour}"))) == 5, "and none was taken off"


async def test_filters_add_up_and_are_kept(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    query = f"key={using.laptop}&key={using.person}&adapter={using.adapter}&group=key&show=cost&range=7d"
    page = await visitor.get(f"/usage?{query}")
    assert set(table(page)) == {
        "laptop View", "ada@acme.example console · View", "Total",
    }  # fmt: skip
    assert re.search(rf'name="key" value="{using.laptop}" checked', page.text)
    assert not re.search(rf'name="key" value="{using.robot}" checked', page.text)
    for name, value in (("range", "7d"), ("group", "key"), ("show", "cost"), ("adapter", using.adapter)):
        assert f'<input type="hidden" name="{name}" value="{value}">' in page.text
    assert "Filters apply" in page.text
    none = await visitor.get("/usage?adapter=none&model=sapling:pirate@1")
    assert "No results" in none.text
    base = table(await visitor.get("/usage?adapter=none"))
    assert base["Total"][0] == "6"


async def test_what_cannot_be_asked_is_told(site: Site, visitor: httpx.AsyncClient) -> None:
    await make_usage(site)
    await sign_in(visitor)
    for query, words in (
        ("range=days&from=2026-11-31&to=2026-12-01", "Enter a date such as"),
        ("range=days&from=2026-11-20&to=2026-11-01", "before the start date"),
        ("range=days&from=2020-01-01&to=2026-11-01", "Choose at most 366 days"),
        ("month=2026-13", "Enter a month such as"),
        ("range=ever", "Unknown date range"),
        ("group=sex", "be grouped by this"),
        ("show=joy", "Unknown metric"),
        ("hour=7", "Choose an hour of a single day"),
        ("model=%00", "Invalid value"),
        ("&".join(f"key={number}" for number in range(101)), "Choose at most 100"),
    ):
        page = await visitor.get(f"/usage?{query}")
        assert page.status_code == 422, query
        assert words in page.text
        assert "Total" in page.text, "the default view is there"
        assert (await visitor.get(f"/usage/requests?{query}")).status_code == 422
        assert (await visitor.get(f"/usage/export?{query}")).status_code == 400
    assert (await visitor.get("/usage/requests?after=x")).status_code == 422


async def test_requests_come_in_pages_and_are_found_by_id(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    for number in range(60):
        await add_request(site, using.today + timedelta(seconds=100 + number), key=using.laptop)
    await sign_in(visitor)
    first = await visitor.get("/usage/requests?range=today")
    (older,) = links(first, "Older")
    second = await visitor.get(f"http://127.0.0.1:8000{older}")
    assert len(table(first)) == 50
    assert len(table(second)) == 15
    assert not {*table(first)} & {*table(second)}
    assert links(second, "Newest") == ["/console/usage/requests?range=today"]
    id = await add_request(site, using.today + timedelta(seconds=1), model=XSS, key=XSS, finish_reason=None)
    found = await visitor.get("/usage/requests", params={"id": f" {id} "})
    assert found.status_code == 303
    by_search = await visitor.get("/search", params={"q": id}, headers={"accept": "application/json"})
    assert by_search.json()["matches"] == [
        {"kind": "Request", "title": id, "path": found.headers["location"]}
    ]
    async with site.place.database.write(EVERY_TENANT) as session:
        named = RequestMetadata("end-user-5", None, {"ticket": XSS})
        sealed = METADATA.seal(named, site.tenant_id, id)
        row = {"tenant_id": site.tenant_id, "submitted_at": submitted_at_of(id), "request_id": id}
        await MetadataWriter(session).add([row | {"sealed": sealed}])
    receipt = await visitor.get(f"http://127.0.0.1:8000{found.headers['location']}")
    assert "Running" in receipt.text
    assert "end-user-5" in receipt.text
    assert "metadata.ticket" in receipt.text
    assert "<img src=x" not in receipt.text
    document = await visitor.get(f"/usage/requests/{id}/receipt.json")
    receipts = UsageReports(site.place.database, METADATA).receipts
    assert document.json() == await receipts.of(site.tenant_id, id)
    assert "attachment" in document.headers["content-disposition"]
    other = await site.tenants.create_tenant("birch")
    theirs = request(other.id, using.today.timestamp(), usage=Usage(10, 0, 5))
    await write(site.place.database, [theirs])
    of_others = await visitor.get(f"/search?q={theirs.request_id}", headers={"accept": "application/json"})
    assert of_others.json()["matches"] == []
    for absent in ("chatcmpl-0", "x" * 300, "..%2f..", theirs.request_id):
        assert (await visitor.get(f"/usage/requests/{absent}")).status_code == 404


async def test_a_receipt_says_what_was_taken_back(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    day = days_ago(using, 5)
    rows = await visitor.get(f"/usage/requests?range=days&from={day}&to={day}&key=key_gone")
    (row,) = [row for row in rows.text.split("<tr>") if ">Reversed</span>" in row]
    (path,) = re.findall(r'href="(/console/usage/requests/[^"]+)"', row)
    taken = await visitor.get(f"http://127.0.0.1:8000{path}")
    assert table(taken)["Billed"][-1] == "$0.000000"
    assert "=cmd|" in html.unescape(taken.text)
    assert "Deleted key" in taken.text


async def test_files_are_those_of_the_export(site: Site, visitor: httpx.AsyncClient) -> None:
    await make_usage(site)
    await sign_in(visitor)
    rows = await visitor.get("/usage/export?range=7d&what=rows&format=csv")
    assert rows.headers["content-type"].startswith("text/csv")
    assert re.fullmatch(
        r'attachment; filename="usage-\d{8}T0000Z-\d{8}T0000Z.csv"', rows.headers["content-disposition"]
    )
    read = list(csv.DictReader(io.StringIO(rows.text)))
    assert [row["kind"] for row in read].count("request") == 12
    total = table(await visitor.get("/usage?range=7d"))["Total"]
    assert f"${sum(int(row['cost_micro_usd']) for row in read) / 1e6:.6f}" == total[4]
    sums = await visitor.get("/usage/export?range=7d&what=sums&group=key&format=parquet")
    columns = pyarrow.parquet.read_table(io.BytesIO(sums.content)).to_pydict()
    assert "api_key_id" in columns
    assert f"${sum(columns['cost_micro_usd']) / 1e6:.6f}" == total[4]
    assert (await visitor.get("/usage/export?format=xlsx")).status_code == 400
    for query in ("adapter=none&range=7d", "key=key_gone&range=7d"):
        total = table(await visitor.get(f"/usage?{query}"))["Total"]
        rows = await visitor.get(f"/usage/export?{query}&what=rows&format=csv")
        read = list(csv.DictReader(io.StringIO(rows.text)))
        assert {row["kind"] for row in read} == {"request", "reversal"}
        sums = await visitor.get(f"/usage/export?{query}&what=sums&group=model&format=csv")
        for found in (read, list(csv.DictReader(io.StringIO(sums.text)))):
            assert f"${sum(int(row['cost_micro_usd']) for row in found) / 1e6:.6f}" == total[4]
            assert f"{sum(int(row['num_requests']) for row in found):,}" == total[0]


async def test_nothing_used_teaches_and_nothing_lately_says_so(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    empty = await visitor.get("/usage")
    assert "No usage yet" in empty.text
    assert "No requests" in (await visitor.get("/usage/requests")).text
    using = await make_usage(site)
    month = await visitor.get("/usage?month=2020-02")
    assert "No usage in Feb 1 to Feb 29, 2020" in month.text
    year = await visitor.get(f"/usage?range=days&from={days_ago(using, 300)}&to={days_ago(using, 0)}")
    assert f"{using.today:%B %Y}" in table(year)


@pytest.mark.parametrize(("role", "status"), [("billing", 200), ("developer", 403), ("viewer", 403)])
async def test_who_may_see_usage(site: Site, visitor: httpx.AsyncClient, role: Any, status: int) -> None:
    using = await make_usage(site)
    await as_role(site, visitor, role)
    for path in ("/usage", "/usage/requests", "/usage/export"):
        assert (await visitor.get(path)).status_code == status, path
    page = await visitor.get("/usage?group=key")
    assert ('href="/console/usage"' in (await visitor.get("/")).text) == (status == 200)
    assert using.laptop not in page.text or f"/keys/{using.laptop}" not in page.text, (
        "no link to what is not theirs"
    )


async def test_other_tenants_usage_is_not_there(site: Site, visitor: httpx.AsyncClient) -> None:
    await make_usage(site)
    other = await site.tenants.create_tenant("birch")
    await site.accounts.create(other.id, "eve@birch.example", "correct horse battery")
    await sign_in(visitor, "eve@birch.example")
    assert "No usage yet" in (await visitor.get("/usage")).text


async def test_the_table_is_sorted_by_the_column_asked_for(site: Site, visitor: httpx.AsyncClient) -> None:
    await make_usage(site)
    await sign_in(visitor)
    page = await visitor.get("/usage?group=key&show=cost")
    assert "aria-sort" not in page.text
    (by_cost,) = links(page, "Cost")[-1:]
    assert "sort=-cost" in by_cost
    assert "group=key" in by_cost
    assert "show=cost" in by_cost, "sorting keeps the view"
    descending = await visitor.get(f"http://127.0.0.1:8000{by_cost}")
    assert re.search(r'<th[^>]* aria-sort="descending"><a[^>]*sort=cost[^>]*>Cost</a>', descending.text)
    rows = table(descending)
    total = rows.pop("Total")
    costs = [float(row[4].removeprefix("$")) for row in rows.values()]
    assert costs == sorted(costs, reverse=True)
    assert next(iter(rows)) != "robot <i> View" or costs[0] == max(costs)
    shares = [float(row[5].removesuffix(" %")) for row in rows.values()]
    assert sum(shares) == pytest.approx(100, abs=0.3), "shares are of the cost that is shown"
    assert total[5] == "100.0 %"
    ascending = table(await visitor.get("/usage?group=key&sort=name"))
    names = [name.casefold() for name in ascending if name != "Total"]
    assert names == sorted(names)
    days = [*table(await visitor.get("/usage?sort=name"))]
    assert days[:-1] == [*table(await visitor.get("/usage"))][-2::-1], "the earliest first"
    refused = await visitor.get("/usage?sort=secret")
    assert refused.status_code == 422
    assert "can&#39;t be sorted by this" in refused.text
