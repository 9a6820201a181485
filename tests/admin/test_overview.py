"""What the first page shows, and to whom."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from billing.service import UsageReports
from db.session import EVERY_TENANT
from engine.protocol import AdapterRef
from sla.measures import Counts
from sla.repository import SlaWriter
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tests.admin.conftest import Site, sign_in
from tests.admin.test_keys import as_role
from tests.admin.test_usage import table, text
from tests.admin.using import make_usage


def tiles(page: httpx.Response) -> dict[str, str]:
    """What stands in each, by its title."""
    found = re.findall(r'<(a|div) class="tile [^"]*"([^>]*)>(.*?)</\1>', page.text, re.DOTALL)
    return {
        text(re.findall(r"<span>(.*?)</span>", inner)[0]): f"{attributes} {text(inner)}"
        for _, attributes, inner in found
    }


async def test_figures_are_those_of_usage(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    await sign_in(visitor)
    found = tiles(await visitor.get("/"))
    today = table(await visitor.get("/usage?range=today&group=key"))["Total"]
    assert f"Requests today {today[0]}" in found["Requests today"]
    costs = await UsageReports(site.place.database).costs.page(
        site.tenant_id, start_time=int(using.today.replace(day=1).timestamp()), limit=31
    )
    spent = sum(one["amount_micro_usd"] for bucket in costs["data"] for one in bucket["results"])
    shown = re.findall(r'<strong title="([^"]+)">', (await visitor.get("/")).text)
    digits = f"{spent / 1e6:,.6f}".rstrip("0")
    assert shown[0] == f"${digits}"
    assert "No limit set" in found[f"Spent in {using.today:%B}"]
    tokens = int(today[1].replace(",", "")) + int(today[3].replace(",", ""))
    assert shown[1] == f"{tokens:,}"


async def test_every_figure_leads_on(site: Site, visitor: httpx.AsyncClient) -> None:
    await make_usage(site)
    await sign_in(visitor)
    page = await visitor.get("/")
    for title, path in (
        ("Tokens today", "/usage?range=today"),
        ("Requests today", "/usage?range=today&show=requests"),
        ("Server errors", "/sla"),
    ):
        assert f'href="/console{path}"' in tiles(page)[title].replace("&amp;", "&")
    hrefs = set(re.findall(r'href="(/console/[^"#]*|usage[^"#]*)', page.text))
    assert len(hrefs) > 20
    for href in sorted(hrefs):
        if "/static/" not in href:
            path = href.replace("&amp;", "&").removeprefix("/console")
            assert (await visitor.get(path)).status_code == 200, href


async def test_spending_is_held_against_the_limit(site: Site, visitor: httpx.AsyncClient) -> None:
    using = await make_usage(site)
    limit = Limit("tenant", site.tenant_id, "", Metric.SPEND_PER_MONTH, 30_000)
    await site.account.limits.set(site.tenant_id, OPERATOR, limit)
    await sign_in(visitor)
    page = await visitor.get("/")
    spending = tiles(page)[f"Spent in {using.today:%B}"]
    assert "of $0.03 monthly limit" in spending
    assert re.search(r'<progress max="100" value="\d+"', page.text)
    await site.account.limits.set(
        site.tenant_id, OPERATOR, Limit("tenant", site.tenant_id, "", Metric.SPEND_PER_MONTH, 0)
    )
    assert 'value="100"' in (await visitor.get("/")).text


async def test_what_is_left_is_shown_to_whoever_pays_in_advance(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    tenant, billing, now = site.tenant_id, site.billing, datetime.now(UTC)
    await billing.credits.add(tenant, "grant", 25_000_000, "grant 1", OPERATOR, now=now)
    assert "No limit set" in (await visitor.get("/")).text
    await billing.accounts.set_mode(tenant, "prepaid", OPERATOR, now=now)
    assert "$25 balance left" in (await visitor.get("/")).text
    await billing.accounts.set_mode(tenant, "postpaid", OPERATOR, now=now + timedelta(minutes=2))
    assert "No limit set" in (await visitor.get("/")).text


async def test_levels_are_those_of_the_last_day(site: Site, visitor: httpx.AsyncClient) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    counts = Counts(400, 3)
    for _ in range(397):
        counts.first_token(0.2, 1)
        counts.output_rate(50, 5)
    old = Counts(1000, 1000)
    minutes = {(site.tenant_id, "flex", now - timedelta(hours=1)): counts}
    minutes[(site.tenant_id, "default", now - timedelta(days=2))] = old
    async with site.place.database.write(EVERY_TENANT) as session:
        await SlaWriter(session).add(minutes)
    await sign_in(visitor)
    page = await visitor.get("/")
    assert "Server errors 0.75 % 3 of 400 in the last 24 hours" in tiles(page)["Server errors"]
    ((name, cells),) = [(name, cells) for name, cells in table(page).items() if "in 24 hours" in name]
    assert name == "Flex 400 requests in 24 hours"
    assert cells[0].endswith("ms")
    assert 150 < int(cells[0].split()[0]) <= int(cells[1].split()[0]) < 250
    assert cells[2].endswith("tokens/s")


async def test_adapters_of_the_tenant_and_nobody_else(site: Site, visitor: httpx.AsyncClient) -> None:
    other = await site.tenants.create_tenant("birch")
    for tenant_id, name, digit in ((site.tenant_id, "pirate", "a"), (other.id, "secret", "b")):
        ref = AdapterRef(digit * 64, 8)
        await site.adapters.register_version(tenant_id, name, ref, base_digest="c" * 64)
    using = await make_usage(site, "used")
    await sign_in(visitor)
    page = await visitor.get("/")
    assert "secret" not in page.text
    rows = table(page)
    assert rows["pirate version 1"] == ["Ready", "Not in 30 days", "0"]
    assert rows["used"][1:] == ["Today", "5.5k"]
    assert f'href="/console/usage?adapter={using.adapter}"' in page.text


async def test_whoever_begins_is_told_how(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = await visitor.get("/")
    assert "Get started" in page.text
    assert page.text.count('<li class="done">') == 0
    await site.place.create("pirate")
    await site.keys.create(site.tenant_id, "laptop", OPERATOR)
    assert (await visitor.get("/")).text.count('<li class="done">') == 2
    await make_usage(site, "other")
    assert "Get started" not in (await visitor.get("/")).text


async def test_names_are_shown_as_text(site: Site, visitor: httpx.AsyncClient) -> None:
    evil = await site.tenants.create_tenant("<script>alert(1)</script>\"'")
    await site.accounts.create(evil.id, "eve@evil.example", "correct horse battery")
    await sign_in(visitor, "eve@evil.example")
    page = (await visitor.get("/")).text
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


async def test_pages_carry_no_inline_style_or_script(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for path in ("/", "/usage", "/usage/requests", "/sign-in", "/absent"):
        page = (await visitor.get(path)).text
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", page)


async def test_the_style_sheet_is_there_and_cacheable(visitor: httpx.AsyncClient) -> None:
    page = await visitor.get("/sign-in")
    found = re.search(r'href="([^"]+/console\.[0-9a-f]{12}\.css)"', page.text)
    assert found is not None
    sheet = await visitor.get(f"http://127.0.0.1:8000{found[1]}")
    assert sheet.status_code == 200
    assert sheet.headers["content-type"].startswith("text/css")
    assert sheet.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "prefers-color-scheme: dark" in sheet.text


@pytest.mark.parametrize("role", ["developer", "billing"])
async def test_a_role_sees_what_it_may(site: Site, visitor: httpx.AsyncClient, role: Any) -> None:
    await make_usage(site)
    await as_role(site, visitor, role)
    page = await visitor.get("/")
    assert page.status_code == 200
    pays = role == "billing"
    assert any(title.startswith("Spent") for title in tiles(page)) == pays
    assert ('href="/console/usage' in page.text) == pays
    assert ("pirate" in page.text) == (not pays)
    for href in set(re.findall(r'href="/console(/[^"#]*)', page.text)):
        if "/static/" not in href:
            assert (await visitor.get(href.replace("&amp;", "&"))).status_code == 200, href
