"""The list of requests with those that were refused: one order, filters, search, what is hidden, and what it
never shows.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from billing.rates import FREE_RATE
from db.session import EVERY_TENANT
from tenants.object_names import CALIBRATION_KEY
from tenants.refusals.recorder import HourCount, RefusedRequest
from tenants.refusals.repository import RefusalWriter
from tests.admin.conftest import Site, sign_in
from tests.admin.test_keys import XSS
from tests.admin.test_usage import links, table
from tests.admin.using import Using, add_request, make_usage

ORIGIN = "http://127.0.0.1:8000"


def refused(site: Site, at: datetime, **fields: Any) -> RefusedRequest:
    given: dict[str, Any] = {
        "tenant_id": site.tenant_id,
        "at": round(at.timestamp() * 1_000_000),
        "request_id": "req_0001",
        "status": 404,
        "code": "model_not_found",
        "message": "The model 'sapling:absent' does not exist.",
        "key_id": "",
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "sapling:absent",
    }
    return RefusedRequest(**given | fields)


async def refuse(site: Site, *calls: RefusedRequest) -> None:
    """As the worker stores them."""
    counts: dict[Any, int] = {}
    for call in calls:
        place = call.tenant_id, call.at // 3_600_000_000 * 3600, call.status, call.code
        counts[place] = counts.get(place, 0) + 1
    async with site.place.database.write(EVERY_TENANT) as session:
        writer = RefusalWriter(session)
        await writer.add(calls)
        await writer.count(
            [
                HourCount(tenant, hour, "one", status, code, number, 0)
                for (tenant, hour, status, code), number in counts.items()
            ]
        )


def shown(page: httpx.Response) -> list[str]:
    """Ids of the requests, in the list's order."""
    return re.findall(r'<span class="unseen">, request ([^<]+)</span>', page.text)


async def furnished(site: Site) -> Using:
    using = await make_usage(site)
    at = using.today + timedelta(seconds=30)
    await refuse(
        site,
        refused(site, at, key_id=using.laptop),
        refused(
            *(site, at + timedelta(seconds=1)),
            request_id="req_0002",
            status=429,
            code="rate_limit_exceeded",
            message="Rate limit reached. Retry in 1.5 s.",
            key_id=using.robot,
            model="sapling:pirate",
        ),
    )
    return using


async def test_both_are_in_one_list_that_pages_exactly(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    expected: list[tuple[datetime, int, str]] = []
    calls = []
    for number in range(70):
        at = using.today + timedelta(seconds=100 + number // 4)  # four at the same moment
        if number % 2:
            id = f"req_{number:08}"
            calls.append(refused(site, at, request_id=id, key_id=using.laptop))
        else:
            id = await add_request(site, at, key=using.laptop)
        expected.append((at, number % 2, id))
    await refuse(site, *calls)
    await sign_in(visitor)
    address, found, pages = "/usage/requests?range=today", list[str](), 0
    while address:
        page = await visitor.get(address)
        found += shown(page)
        address = next((ORIGIN + href for href in links(page, "Older")), "")
        pages += 1
    assert pages == 2
    assert len(found) == len(set(found)) == 75
    in_order = [id for _, _, id in sorted(expected, reverse=True)]
    assert found[:70] == in_order


async def test_a_refused_request_says_why_and_what_to_do(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await furnished(site)
    await sign_in(visitor)
    home = await visitor.get("/")
    tile = re.search(r'href="(/console/usage/requests[^"]*status=failed)"', home.text)
    assert tile is not None, "the first click"
    rows = await visitor.get(ORIGIN + tile[1].replace("&amp;", "&"))
    assert shown(rows) == ["req_0002", "req_0001"]
    first, second = table(rows).values()
    assert first == [
        "429 rate_limit_exceeded",
        "sapling:pirate",
        "robot <i>",
        "Rate limit reached. Retry in 1.5 s.",
    ]
    assert second[0] == "404 model_not_found"
    path = re.search(r'href="(/console/usage/requests/refused/[^"]*)"', rows.text)
    assert path is not None
    page = await visitor.get(ORIGIN + path[1])
    for words in (
        "req_0002",
        "Rate limit reached",
        "Retry-After",
        f"/keys/{using.robot}",
        "/docs/api/#errors",
    ):
        assert words in page.text
    assert "Not billed" in page.text


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("status=failed", ["req_0002", "req_0001"]),
        ("status=rate_limit_exceeded", ["req_0002"]),
        ("status=404", ["req_0001"]),
        ("status=500", []),
        ("status=failed&model=sapling:pirate@1", ["req_0002"]),
        ("status=failed&key={using.laptop}", ["req_0001"]),
        ("status=failed&adapter={using.adapter}", []),
    ],
)
async def test_filters(site: Site, visitor: httpx.AsyncClient, query: str, ids: list[str]) -> None:
    using = await furnished(site)
    await sign_in(visitor)
    page = await visitor.get(f"/usage/requests?range=today&{query.format(using=using)}")
    assert shown(page) == ids
    assert "status=" in (await visitor.get(f"/usage/requests?{query.format(using=using)}")).text


async def test_a_status_by_which_requests_ended(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await furnished(site)
    at = using.today + timedelta(seconds=60)
    ids = {
        reason: await add_request(site, at, key=using.laptop, finish_reason=reason)
        for reason in ("error", "abort", None)
    }
    await sign_in(visitor)
    succeeded = shown(await visitor.get("/usage/requests?range=today&status=succeeded"))
    assert len(succeeded) == 5
    failed = shown(await visitor.get("/usage/requests?range=today&status=failed"))
    assert set(failed) == {ids["error"], ids["abort"], "req_0001", "req_0002"}
    page = await visitor.get("/usage/requests?range=days&status=nonsense%20!")
    assert page.status_code == 422


async def test_search_by_either_id(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await furnished(site)
    again = refused(site, using.today + timedelta(seconds=50), key_id=using.laptop)
    other = await site.tenants.create_tenant("birch")
    theirs = refused(site, using.today, tenant_id=other.id, request_id="req_of_another")
    await refuse(site, again, theirs)
    await sign_in(visitor)
    found = await visitor.get("/usage/requests?id=+req_0001+")
    assert found.status_code == 303
    page = await visitor.get(ORIGIN + found.headers["location"])
    assert "1 more with the same request ID" in page.text
    long = refused(site, using.today, request_id="req_0123456789abcdef01234567")
    await refuse(site, long)
    searched = await visitor.get(f"/search?q={long.request_id}", headers={"accept": "application/json"})
    [match] = searched.json()["matches"]
    assert match["kind"] == "Request"
    assert (await visitor.get(ORIGIN + match["path"])).status_code == 200
    for absent in ("req_of_another", "chatcmpl-0", "x" * 300, "%00", "..%2f.."):
        page = await visitor.get(f"/usage/requests?id={absent}")
        assert page.status_code == 404, absent
        assert "No request with this ID" in page.text
    for position in (f"{theirs.at}!{theirs.request_id}", "1!x", f"{again.at}~req_0001", "x", "9" * 16 + "!x"):
        assert (await visitor.get(f"/usage/requests/refused/{position}")).status_code == 404, position


async def test_texts_of_clients_are_escaped(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    call = refused(site, using.today, message=XSS, model=XSS, path=XSS, key_id=XSS, code="invalid_value")
    await refuse(site, call)
    await sign_in(visitor)
    for path in ("/usage/requests", f"/usage/requests/refused/{call.at}!{call.request_id}"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert XSS not in page.text
        assert "&lt;" in page.text


async def test_calibration_and_deleted_keys_are_hidden_and_costs_stay(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    before = table(await visitor.get("/usage"))["Total"]
    id = await add_request(site, using.today + timedelta(seconds=20), key=CALIBRATION_KEY, rate=FREE_RATE)
    page = await visitor.get("/usage")
    assert table(page)["Total"] == before, "not among the totals"
    (show,) = links(page, "Show calibration")
    with_it = table(await visitor.get(ORIGIN + show))["Total"]
    assert int(with_it[0]) == int(before[0]) + 1
    assert with_it[4] == before[4], "it has no price"
    rows = await visitor.get("/usage/requests")
    assert len(shown(rows)) == 10, "neither it nor the two of a key that is gone"
    (show,) = links(rows, "Show calibration")
    page = await visitor.get(ORIGIN + show)
    assert id in shown(page)
    assert "Calibration" in {cell for row in table(page).values() for cell in row}
    (show,) = links(rows, "Show deleted keys")
    assert len(shown(await visitor.get(ORIGIN + show))) == 12


async def test_what_is_not_listed_is_told(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await furnished(site)
    hour = int(using.today.timestamp())
    async with site.place.database.write(EVERY_TENANT) as session:
        many = HourCount(site.tenant_id, hour, "two", 429, "rate_limit_exceeded", 1_334, 1_234)
        await RefusalWriter(session).count([many])
    await sign_in(visitor)
    page = await visitor.get("/usage/requests?range=today")
    assert "1,234 more requests were refused" in page.text


async def test_refusals_of_another_tenant_are_not_there(site: Site, visitor: httpx.AsyncClient) -> None:
    await furnished(site)
    other = await site.tenants.create_tenant("birch")
    await site.accounts.create(other.id, "eve@birch.example", "correct horse battery")
    await sign_in(visitor, "eve@birch.example")
    page = await visitor.get("/usage/requests")
    assert shown(page) == []
    assert "model_not_found" not in page.text
    assert "Last 24 hours: see why" not in (await visitor.get("/")).text
