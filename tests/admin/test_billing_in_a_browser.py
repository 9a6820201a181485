"""What a month costs, in a real browser: from an invoice and its document to a limit and a webhook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.admin.browsing import Visit, visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.test_billing import LAST_MONTH, NOW, business, invoiced
from tests.support.hook_server import HookServer, hook_server

"""Rules whose outcome differs between themes and widths."""


@pytest.fixture
async def hooks() -> AsyncIterator[HookServer]:
    async with hook_server() as server:
        yield server


async def test_an_owner_sees_what_is_owed_and_bounds_it(
    site: Site, seen: Visit, browser: Browser, hooks: HookServer
) -> None:
    page = seen.page
    invoice = await invoiced(site)
    await business(site).use(site.tenant_id, NOW, 1_234_567, model="sapling:pirate@1")

    await seen.go("/billing")
    await (
        page.get_by_role("region", name="This month").get_by_text("$1.2303").wait_for()
    )  # less what rounding added
    await page.get_by_role("link", name="Invoices").first.click()
    await page.get_by_role("link", name=f"{LAST_MONTH:%B %Y}").click()
    await page.get_by_title("$12.345733").first.wait_for()
    await page.emulate_media(media="print")
    assert await page.get_by_text("Line items").is_visible()
    for screen_only in (page.locator("nav"), page.get_by_role("link", name="Download PDF")):
        assert not await screen_only.first.is_visible()
    await page.emulate_media(media="screen")
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download PDF").click()
    document = await downloading.value
    assert document.suggested_filename == "INV-000001.pdf"
    body = await asyncio.to_thread((await document.path()).read_bytes)
    assert body.startswith(b"%PDF-")
    await page.get_by_role("link", name="Verify invoice").click()
    await page.get_by_role("heading", name="Verified").wait_for()

    await page.get_by_role("link", name="Limits and alerts").click()
    await page.fill("#spend", "lots")
    await page.get_by_role("button", name="Set spend limit").click()
    await page.locator("#problem-spend").wait_for()
    assert [one for one in seen.complaints if "422" not in one] == []
    seen.complaints.clear()
    await page.fill("#spend", "2")
    await page.get_by_role("button", name="Set spend limit").click()
    await page.get_by_text("Monthly spend limit set to $2.00.").wait_for()
    meter = page.get_by_role("progressbar", name="Monthly spend limit")
    assert await meter.get_attribute("value") == "61"

    await page.get_by_role("link", name="Webhooks").click()
    await page.get_by_role("link", name="Add endpoint").click()
    await page.fill("#name", "robot")
    await page.fill("#url", hooks.url("/204"))
    await page.get_by_role("button", name="Add endpoint").click()
    secret = await page.input_value("#secret")
    assert secret.startswith("whsec_")
    await page.reload()
    await page.get_by_role("heading", name="robot").wait_for()
    assert secret not in await page.content()
    await page.select_option("#event_type", "adapter.ready")
    await page.get_by_role("button", name="Send test event").click()
    await page.get_by_text("Test event delivered: the endpoint responded with 204.").wait_for()
    (heard,) = hooks.heard
    delivery = page.get_by_role("row").filter(has_text="adapter.ready").last
    assert "Delivered" in await delivery.inner_text()
    await delivery.get_by_text("Payload").click()
    assert heard.headers["webhook-id"] in await delivery.locator("pre").inner_text()
    endpoint = page.url.removeprefix(seen.console)

    paths = ["/billing", "/invoices", f"/invoices/{invoice.id}", "/limits", "/limits/alerts/new", endpoint]
    assert not await seen.look_at(*paths)

    await site.accounts.create(site.tenant_id, "viewer@acme.example", PASSWORD, role="viewer")
    viewer = await visit(await browser.new_context(), seen.console.removesuffix("/console"))
    await viewer.sign_in("viewer@acme.example", PASSWORD)
    menu = await viewer.page.get_by_role("navigation", name="Console").inner_text()
    assert "Limits" in menu
    for section in ("Billing", "Invoices", "Webhooks"):
        assert section not in menu
    await viewer.go("/limits")
    assert await viewer.page.locator("#spend").count() == 0
    await viewer.go(f"/invoices/{invoice.id}")
    await viewer.page.get_by_role("heading", name="Access denied").wait_for()
