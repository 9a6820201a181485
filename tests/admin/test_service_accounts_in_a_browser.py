"""A service account's life in a real browser, and a member shut out: in either theme and on a telephone."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.async_api import expect

from tenants.resolver import KeyResolver
from tests.admin.browsing import Visit, chromium, visit
from tests.admin.conftest import EMAIL, PASSWORD, SECRET, Site
from tests.support.serving import served

WIDE = {"width": 1280, "height": 844}


async def test_a_program_gets_its_account_and_a_member_is_shut_out(site: Site) -> None:
    project = await site.account.projects.default(site.tenant_id)
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="developer")
    async with chromium() as browser, served(site.whole) as origin:
        context = await browser.new_context(viewport=WIDE)  # type: ignore[arg-type]
        seen = await visit(context, origin)
        await seen.sign_in(EMAIL, PASSWORD)
        here = await _made_with_a_key(site, seen, project.id)
        found = await seen.look_at(f"/projects/{project.id}", here)
        await _key_revoked_and_account_deleted(seen, here)
        member = f"/members/{her.user_id}"
        await _shut_out_and_let_in(seen, member)
        await seen.page.get_by_role("button", name="Suspend", exact=True).first.click()
        await seen.page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
        found += await seen.look_at(member)
        assert not found
        assert not seen.complaints


async def _made_with_a_key(site: Site, seen: Visit, project_id: str) -> str:
    page = seen.page
    await seen.go(f"/projects/{project_id}")
    await page.get_by_role("link", name="Create service account").click()
    found = await seen.look_at(urlsplit(page.url).path.removeprefix("/console"))
    assert not found
    await page.get_by_label("Name").fill("nightly summaries")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="API key created")).to_be_visible()
    assert not await seen.serious()
    key = await page.get_by_label("API key", exact=True).input_value()
    caller = await KeyResolver(site.place.database, site.redis, SECRET).resolve(key)
    await page.get_by_role("link", name="Done").click()
    await expect(page.get_by_role("heading", name="nightly summaries", exact=True)).to_be_visible()
    assert page.url.endswith(caller.user_id or "")
    assert key not in await page.content()
    return urlsplit(page.url).path.removeprefix("/console")


async def _key_revoked_and_account_deleted(seen: Visit, here: str) -> None:
    page = seen.page
    await seen.go(here)
    await page.get_by_role("button", name="Revoke Secret key").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await page.wait_for_url(re.compile("/keys$"))
    await seen.go(here)
    await expect(page.get_by_text("No active keys")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete service account").click()
    await expect(page.get_by_text("nightly summaries was deleted")).to_be_visible()


async def _shut_out_and_let_in(seen: Visit, member: str) -> None:
    page = seen.page
    await seen.go(member)
    await page.get_by_role("button", name="Suspend", exact=True).first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Suspend").click()
    await expect(page.get_by_role("heading", name="Suspended since")).to_be_visible()
    await page.get_by_role("button", name="Reinstate").click()
    await expect(page.get_by_text("was reinstated")).to_be_visible()
