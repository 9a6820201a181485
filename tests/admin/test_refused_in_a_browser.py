"""Refused requests in a browser: two clicks from sign-in to the reason, accessible, on any screen."""

from __future__ import annotations

from tests.admin.browsing import chromium, visit
from tests.admin.conftest import EMAIL, PASSWORD, Site
from tests.admin.test_refused_requests import furnished
from tests.support.serving import served

TILES_BY_ROW = """() => {
  const rows = new Map();
  for (const tile of document.querySelectorAll(".glance > *")) {
    rows.set(tile.offsetTop, (rows.get(tile.offsetTop) ?? 0) + 1);
  }
  return [...rows.values()];
}"""
ROWS = {1280: [5], 1000: [3, 2], 390: [1, 2, 2]}
HIDDEN_PX = """() => {
  const table = document.querySelector(".requests");
  return table === null ? 0 : table.parentElement.scrollWidth - table.parentElement.clientWidth;
}"""


async def test_why_a_request_was_refused_in_two_clicks(site: Site) -> None:
    await furnished(site)
    async with chromium() as browser, served(site.whole) as origin:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        seen = await visit(context, origin)
        await seen.sign_in(EMAIL, PASSWORD)
        page = seen.page
        await page.get_by_role("link", name="Refused requests").click()
        await page.locator(".requests th a").first.click()
        await page.get_by_text("Rate limit reached").wait_for()
        refused = page.url.removeprefix(seen.console)
        found = []
        for path in ("/", "/usage/requests?range=today", refused):
            found += await seen.look_at(path)
            for width, rows in ROWS.items():
                await page.set_viewport_size({"width": width, "height": 900})
                found += await seen.too_wide(path)
                hidden = await page.evaluate(HIDDEN_PX)
                assert hidden <= 0, f"the list of requests is {hidden} px wider than a page of {width}"
                if path == "/":
                    assert await page.evaluate(TILES_BY_ROW) == rows
        assert not found
        assert not seen.complaints
