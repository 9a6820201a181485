"""A page that follows something says that it is gone when it was deleted, whatever it followed."""

from __future__ import annotations

from playwright.async_api import expect

from tenants.actors import OPERATOR
from tests.admin.browsing import Visit
from tests.admin.conftest import Site
from tests.admin.test_webhooks import happen, made


async def test_what_is_deleted_is_said_to_be_gone(site: Site, seen: Visit) -> None:
    adapter = (await site.place.create("pirate")).adapter.id
    endpoint = await made(site, "https://hooks.example/")
    await happen(site, "first")

    await seen.go(f"/adapters/{adapter}")
    await site.place.onboarding.deletion.delete(site.tenant_id, adapter)
    await _gone(seen, "Adapters", "/adapters")

    await seen.go(f"/webhooks/{endpoint}")
    await site.billing.webhooks.delete(site.tenant_id, endpoint, OPERATOR)
    await _gone(seen, "Webhooks", "/webhooks")
    # The browser itself tells of each answer that was no success.
    assert [one for one in seen.complaints if "404" not in one] == []
    seen.complaints.clear()


async def _gone(seen: Visit, title: str, path: str) -> None:
    page = seen.page
    await expect(page.locator("h1")).to_have_text("This page no longer exists")
    await expect(page.locator("h1")).to_be_focused()
    await expect(page.locator("form", has_text="Delete")).to_have_count(0)
    assert await page.title() == "This page no longer exists · Rootstock"
    assert not await seen.serious()
    await seen.picture(f"gone-{title}")
    await page.click(f"text=Go to {title}")
    await page.wait_for_url(f"{seen.console}{path}")
