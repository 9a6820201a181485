"""The search for pages, adapters, keys and projects: what it finds for whom, and the palette's keyboard."""

from __future__ import annotations

import httpx
from playwright.async_api import expect

from admin.search.page import MAX_MATCHES
from tenants.actors import OPERATOR
from tests.admin.browsing import Visit
from tests.admin.conftest import Site, sign_in
from tests.admin.test_keys import as_role

JSON = {"accept": "application/json"}
HOSTILE = "<img src=x onerror=alert(1)>"


async def search(visitor: httpx.AsyncClient, query: str) -> list[tuple[str, str, str]]:
    answer = await visitor.get("/search", params={"q": query}, headers=JSON)
    assert answer.status_code == 200
    return [(one["kind"], one["title"], one["path"]) for one in answer.json()["matches"]]


async def test_names_are_found_in_any_case_and_beginnings_first(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    project = await site.account.projects.create(site.tenant_id, "Old Pirates", OPERATOR)
    key = await site.keys.create(site.tenant_id, "Pirate key 100%", OPERATOR)
    gone = await site.keys.create(site.tenant_id, "Pirate key revoked", OPERATOR)
    await site.keys.revoke(site.tenant_id, gone.id, OPERATOR)
    adapter = (await site.place.create("pirate")).adapter.id
    await site.place.create("pirates-of-others", tenant=1)
    assert await search(visitor, "  pIrAtE ") == [
        ("Adapter", "pirate", f"/console/adapters/{adapter}"),
        ("API key", "Pirate key 100%", f"/console/keys/{key.id}"),
        ("Project", "Old Pirates", f"/console/projects/{project.id}"),
    ]
    assert [title for _, title, _ in await search(visitor, "0%")] == ["Pirate key 100%"], "% is no wildcard"
    assert await search(visitor, "_irate") == []
    assert ("Page", "Usage", "/console/usage") in await search(visitor, "usa")
    pages = await search(visitor, "")
    assert {kind for kind, *_ in pages} == {"Page"}
    for _, _, path in [*pages, *await search(visitor, "pirate")]:
        assert (await visitor.get(path.removeprefix("/console"))).status_code == 200, path
    page = await visitor.get("/search?q=pirate")
    assert f'href="/console/adapters/{adapter}">pirate</a>' in page.text
    for hostile in (HOSTILE, "\x00", "'", "x" * 5000):
        answer = await visitor.get("/search", params={"q": hostile})
        assert answer.status_code == 200
        assert HOSTILE not in answer.text


async def test_no_more_than_twenty_are_answered(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for number in range(MAX_MATCHES + 5):
        await site.keys.create(site.tenant_id, f"robot {number}", OPERATOR)
    assert len(await search(visitor, "robot")) == MAX_MATCHES


async def test_a_role_finds_only_what_it_can_open(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.keys.create(site.tenant_id, "pirate key", OPERATOR)
    await site.place.create("pirate")
    await as_role(site, visitor, "billing")
    assert await search(visitor, "pirate") == []
    titles = {title for _, title, _ in await search(visitor, "")}
    assert "Billing" in titles
    assert not titles & {"Adapters", "Playground", "API keys"}
    async with site.visitor() as stranger:
        assert (await stranger.get("/search?q=pirate", headers=JSON)).status_code == 401


async def test_the_palette_is_used_by_the_keyboard_alone(site: Site, seen: Visit) -> None:
    await site.keys.create(site.tenant_id, f"pirate {HOSTILE}", OPERATOR)
    adapter = (await site.place.create("pirate")).adapter.id
    page = seen.page
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    options = page.get_by_role("option")
    await options.nth(3).wait_for()
    await page.keyboard.type("pira")
    await expect(options).to_have_count(2)
    assert await options.all_text_contents() == ["pirate Adapter", f"pirate {HOSTILE} API key"]
    assert await field.get_attribute("aria-activedescendant") == "match-0"
    await page.keyboard.press("ArrowDown")
    assert await options.nth(1).get_attribute("aria-selected") == "true"
    await page.keyboard.press("ArrowDown")
    assert await options.nth(0).get_attribute("aria-selected") == "true", "around"
    assert not await seen.serious()
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/adapters/{adapter}")
    await page.keyboard.press("Meta+k")
    await options.first.wait_for()
    await page.keyboard.press("Escape")
    assert not await page.locator("#palette").is_visible()
    await page.get_by_role("link", name="Search").click()
    await page.locator("#palette").wait_for()
