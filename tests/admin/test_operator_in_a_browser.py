"""An operator's day in a real browser: a tenant is found and looked into, prices are tried, and every page is
for everybody.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from playwright.async_api import expect

from billing.months import begin, month_of
from billing.rates import Rate
from engine.protocol import Usage
from tenants.actors import Actor
from tenants.operators.service import OperatorAccounts
from tests.admin.browsing import Visit, chromium, visit
from tests.admin.conftest import EMAIL, PASSWORD, Site
from tests.admin.operators import OPERATOR_EMAIL
from tests.admin.test_operator_capacity import furnish
from tests.admin.test_operator_engines import report as engine_report
from tests.support.booked import request, write
from tests.support.serving import served


async def test_an_operators_day(site: Site) -> None:
    now = datetime.now(UTC)
    before = begin(month_of(begin(month_of(now)) - timedelta(days=1))) + timedelta(days=3)
    rate = Rate("prc_x", 200_000, 100_000, 800_000)
    usage = Usage(4_000_000, 1_000_000, 90_000)
    moments = (before.timestamp(), now.timestamp())
    await write(site.place.database, [request(site.tenant_id, at, usage=usage, rate=rate) for at in moments])
    await OperatorAccounts(site.place.database, site.redis).add(OPERATOR_EMAIL, PASSWORD)
    tenant = await site.tenants.find_tenant(site.tenant_id)
    async with chromium() as browser, served(site.whole) as origin:
        seen = await visit(await browser.new_context(viewport={"width": 1280, "height": 900}), origin)
        page = seen.page
        await seen.sign_in(OPERATOR_EMAIL, PASSWORD, "/operator/tenants")

        await page.fill("#search", EMAIL.partition("@")[0])
        await page.click("text=Search >> visible=true")
        await page.click(f".list >> text={tenant.name}")
        await expect(page.locator("h1")).to_contain_text(tenant.name)

        await page.click("nav >> text=Prices")
        await page.click("text=Set prices")
        for field, amount in (("input", "0.40"), ("cached_input", "0.10"), ("output", "1.60")):
            await page.fill(f"#{field}", amount)
        await page.click("text=Preview effect")
        # 3 M at 0.40, 1 M at 0.10 and 90 k at 1.60 a million.
        await expect(page.locator("#effect")).to_contain_text("$1.444")
        await seen.picture("price_new")
        await page.click("text=Review changes")
        await expect(page.locator("#changes")).to_contain_text("$1.60")
        found = [f"review: {one}" for one in await seen.serious()]
        await seen.picture("price_review")
        await page.click("text=Publish prices")
        await expect(page.locator(".told")).to_contain_text("Prices published")

        await seen.go(f"/operator/tenants/{site.tenant_id}")
        await page.click("text=Open console")
        await page.check("input[value=full]")
        await page.fill("#reason", "ticket 4711")
        await seen.picture("open")
        await page.click("#enter button[type=submit]")
        await page.wait_for_url(f"{seen.console}/")
        whose = f"{tenant.name} as {EMAIL}, with full access"
        for path in ("/", "/keys", "/members"):
            await seen.go(path)
            await expect(page.locator(".guest")).to_contain_text(whose)
        found += [f"guest: {one}" for one in await seen.serious()]
        await seen.picture("guest")
        await page.set_viewport_size({"width": 390, "height": 844})
        await seen.picture("guest-390")
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        await page.click("text=Leave")
        await page.wait_for_url(f"{seen.console}/operator/tenants/{site.tenant_id}")
        await expect(page.locator(".guest")).to_have_count(0)
        found += await _each_page(site, seen)
        assert not found
        assert not seen.complaints


async def _each_page(site: Site, seen: Visit) -> list[str]:
    """What axe finds on them, in both themes; none scrolls sideways."""
    actor = Actor("operator", "usr_x", email=OPERATOR_EMAIL)
    incident = await site.operation.incidents.open(
        "Answers are slow", "major", actor, note="We look into it."
    )
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    report = await site.operation.books.reconcile(today - timedelta(days=1), today + timedelta(days=1))
    await site.place.create("coming", "sql")
    await furnish(site)
    site.engines.reports = [engine_report()]
    await site.operation.margins.look(f"{today:%Y-%m}", 2_500_000, 1)
    return await seen.look_at(
        "/operator/tenants",
        f"/operator/tenants/{site.tenant_id}",
        "/operator/prices",
        "/operator/capacity",
        f"/operator/margin?month={today:%Y-%m}&price=2.50&gpus=1",
        "/operator/jobs",
        "/operator/reconciliation",
        f"/operator/reconciliation/{report.id}",
        "/operator/incidents",
        f"/operator/incidents/{incident.id}",
        "/operator/audit",
        "/operator/audit/check",
    )
