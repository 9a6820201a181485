"""A plan in a real browser: made, put on a tenant, and changed after a look at what it would be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from playwright.async_api import expect

from billing.months import begin, month_of
from billing.rates import Rate
from engine.protocol import PriorityClass, Usage
from tenants.operators.service import OperatorAccounts
from tenants.plans import PlanChanges
from tests.admin.browsing import Visit, chromium, visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.operators import OPERATOR_EMAIL
from tests.support.booked import request, write
from tests.support.serving import served


async def test_a_plan_is_made_and_changed(site: Site) -> None:
    await OperatorAccounts(site.place.database, site.redis).add(OPERATOR_EMAIL, PASSWORD)
    tenant = await site.tenants.find_tenant(site.tenant_id)
    await site.operation.prices.add(input=200_000, cached_input=100_000, output=800_000)
    before = begin(month_of(begin(month_of(datetime.now(UTC))) - timedelta(days=1))) + timedelta(days=3)
    usage, rate = Usage(40_000_000, 1_000_000, 900_000), Rate("prc_x", 200_000, 100_000, 800_000)
    events = [request(site.tenant_id, before.timestamp(), usage=usage, rate=rate) for _ in range(3)]
    await write(site.place.database, events)
    async with chromium() as browser, served(site.whole) as origin:
        seen = await visit(await browser.new_context(viewport={"width": 1280, "height": 900}), origin)
        page = seen.page
        await seen.sign_in(OPERATOR_EMAIL, PASSWORD, "/operator/tenants")

        await page.click("nav >> text=Plans")
        await page.get_by_role("link", name="Create plan").click()
        found = await seen.serious()
        await page.fill("#name", "gold")
        await page.fill("#monthly_fee", "25")
        await page.check("input[name=priority_allowed]")
        await page.fill("#priority_credits", "99.9: 10\n99: 30")
        await page.get_by_role("button", name="Create plan").click()
        await expect(page.locator(".told")).to_contain_text("Plan gold created")
        plan = await site.account.plans.find("gold")
        assert plan.terms[PriorityClass.PRIORITY].credits == ((999_000, 10), (990_000, 30))

        await seen.go(f"/operator/tenants/{site.tenant_id}")
        await page.select_option("#plan", "gold")
        await page.get_by_role("button", name="Change plan").click()
        await expect(page.locator("h1")).to_have_text("Change plan from standard to gold")
        await expect(page.locator("#differences")).to_contain_text("$25.00")
        await page.click("button:text-is('Change plan to gold')")
        await expect(page.locator(".told")).to_contain_text(f"{tenant.name} is now on the gold plan.")

        await page.click(".pairs >> text=gold")
        await page.click("a:text-is('Edit')")
        await page.fill("#limits_requests_per_minute", "600")
        await page.uncheck("input[name=flex_allowed]")
        await page.click("button:text-is('Review changes')")
        await expect(page.locator("#differences tbody tr")).to_have_count(2)
        await page.click("text=Apply changes for 1 tenant")
        await expect(page.locator(".told")).to_contain_text("Plan gold updated for 1 tenant.")
        changed = await site.account.plans.find("gold")
        assert changed.limits == {"requests_per_minute": 600}
        assert not changed.terms[PriorityClass.FLEX].allowed
        found += await _each_page(site, seen, plan.id)
        assert not found
        assert not seen.complaints


async def _each_page(site: Site, seen: Visit, plan_id: str) -> list[str]:
    """What axe finds on them, in both themes; none scrolls sideways."""
    terms = {"flex": {"credits": [[999_000, 10], [990_000, 25], [950_000, 100]], "max_wait_ms": 60_000}}
    await site.account.plans.set("standard", PlanChanges(limits={"storage_bytes": 20 * 10**9}, terms=terms))
    here = f"/operator/plans/{plan_id}"
    pages = ("/operator/plans", here, f"/operator/tenants/{site.tenant_id}/plan?plan=standard")
    found = await seen.look_at(*pages)
    await seen.go(f"{here}/edit")
    await seen.page.fill("#priority_credits", "99.9: 5\n99: 20\n95: 100")
    await seen.page.fill("#monthly_fee", "30")
    await seen.page.click("button:text-is('Review changes')")
    await expect(seen.page.locator("#differences")).to_be_visible()
    await expect(seen.page.locator("#effect")).to_contain_text("+$5.00")
    found += await seen.looked_at("edit")
    await seen.page.fill("#max_adapters", "many")
    await seen.page.click("button:text-is('Review changes')")
    await expect(seen.page.locator("#problem-max_adapters")).to_be_visible()
    # Chromium says of every page that was answered with 422 that it was.
    seen.complaints = [one for one in seen.complaints if "status of 422" not in one]
    return found + await seen.looked_at("wrong")
