"""The console's export and the API's: of the same question the same bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.app import create_app
from billing.service import UsageReports
from tenants.actors import OPERATOR
from tenants.resolver import KeyResolver
from tests.admin.conftest import SECRET, Site, sign_in
from tests.admin.using import Using, make_usage
from tests.api.conftest import build
from tokenization.codec import TextCodec

PATH = "/v1/organization/usage/export"
DAY = 86_400
CONTENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("what=rows", {}),
    ("what=sums&group=key", {"bucket_width": "1d", "group_by[]": "api_key_id"}),
)
FILTERS = ("api_key_ids", "models", "project_ids", "user_ids", "adapter_ids", "service_tiers")


@pytest.fixture
async def api(site: Site, codec: TextCodec) -> AsyncIterator[httpx.AsyncClient]:
    """With an admin key of the tenant whose console it is."""
    keys = KeyResolver(site.place.database, site.redis, SECRET)
    services = replace(
        build(codec).services, keys=keys, accounts=site.account, usage=UsageReports(site.place.database)
    )
    made = await site.keys.create(site.tenant_id, "reports", OPERATOR, kind="admin")
    transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {made.plaintext}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as opened:
        yield opened
    await keys.close()


def questions(using: Using) -> list[tuple[str, dict[str, Any]]]:
    """What the console is asked, and how the API is asked the same: every filter, alone and with others."""
    return [
        ("", {}),
        (f"key={using.laptop}", {"api_key_ids[]": using.laptop}),
        (f"key={using.laptop}&key={using.robot}", {"api_key_ids": [using.laptop, using.robot]}),
        ("key=key_gone", {"api_key_ids": "key_gone"}),
        (f"project={using.project}&tier=flex", {"project_ids": using.project, "service_tiers[]": "flex"}),
        (f"user={using.person}", {"user_ids": using.person}),
        ("user=none", {"user_ids[]": ""}),
        ("model=sapling:pirate@1", {"models[]": "sapling:pirate@1"}),
        (f"adapter={using.adapter}&adapter=none", {"adapter_ids[]": [using.adapter, ""]}),
        ("tier=priority", {"service_tiers": "priority"}),
    ]


async def test_the_same_question_gets_the_same_bytes(
    site: Site, visitor: httpx.AsyncClient, api: httpx.AsyncClient
) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    end = int(using.today.timestamp()) + DAY
    span = {"start_time": end - 7 * DAY, "end_time": end}
    sizes = set()
    for number, (asked, filters) in enumerate(questions(using)):
        for what, sums in CONTENTS:
            form = "parquet" if number % 4 == 1 else "csv"
            page = await visitor.get(f"/usage/export?range=7d&{asked}&{what}&format={form}")
            answer = await api.get(PATH, params={**span, **filters, **sums, "format": form})
            assert (page.status_code, answer.status_code) == (200, 200), (asked, answer.text)
            assert page.content == answer.content, (asked, what)
            for header in ("content-type", "content-disposition"):
                assert page.headers[header] == answer.headers[header]
            sizes.add(len(answer.content))
    assert len(sizes) >= 10, "the questions are different ones"


async def test_an_hour_of_a_day_too(site: Site, visitor: httpx.AsyncClient, api: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    day, start = using.today.date().isoformat(), int(using.today.timestamp())
    page = await visitor.get(f"/usage/export?range=days&from={day}&to={day}&hour=0&what=sums&group=adapter")
    params = {"start_time": start, "end_time": start + 3600, "bucket_width": "1h", "group_by": "adapter_id"}
    assert page.content == (await api.get(PATH, params=params)).content
    assert using.adapter.encode() in page.content


async def test_what_is_wrong_is_named(site: Site, api: httpx.AsyncClient) -> None:
    for field in FILTERS:
        for wrong in (["x"] * 1001, ["\x00"], ["x" * 513]):
            for name in (field, f"{field}[]"):
                refused = await api.get(PATH, params={"start_time": 0, name: wrong})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), name
    for name, wrong in (
        ("group_by", "colour"),
        ("bucket_width", "2d"),
        ("format", "xlsx"),
        ("tiers", "flex"),
    ):
        refused = await api.get(PATH, params={"start_time": 0, name: wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
