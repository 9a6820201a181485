"""Usage and the first page in a real browser: as somebody looks into what was used, by pointer and by
keyboard, in either theme and on a telephone.
"""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path

from playwright.async_api import Page, Request

from tests.admin.browsing import NARROW, Visit, chromium, visit
from tests.admin.conftest import EMAIL, PASSWORD, Site
from tests.admin.test_usage import cells, reported, summed
from tests.admin.using import Using, make_usage
from tests.support.serving import served

FIRST_LOAD_BYTES = 100_000


async def test_looking_into_usage(site: Site) -> None:
    using = await make_usage(site)
    async with chromium() as browser, served(site.whole) as origin:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        seen = await visit(context, origin)
        await seen.sign_in(EMAIL, PASSWORD)
        await _first_load_is_light(seen)
        await _group_filter_and_export(site, using, seen)
        await _down_to_a_receipt(seen)
        await _for_everybody(using, seen)
        assert not seen.complaints


async def _first_load_is_light(seen: Visit) -> None:
    """Nothing is kept from before: a window of somebody who comes back signed in, for the first time."""
    assert seen.page.context.browser is not None
    fresh = await seen.page.context.browser.new_context(storage_state=await seen.page.context.storage_state())
    page = await fresh.new_page()
    sizes: list[Request] = []
    page.on("requestfinished", lambda request: sizes.append(request))
    await page.goto(f"{seen.console}/", wait_until="networkidle")
    assert await page.get_by_role("heading", name="Tokens by day").is_visible()
    transferred = 0
    for request in sizes:
        told = await request.sizes()
        transferred += told["responseBodySize"] + told["responseHeadersSize"]
    assert len(sizes) >= 4
    assert 20_000 < transferred < FIRST_LOAD_BYTES
    await fresh.close()


async def _group_filter_and_export(site: Site, using: Using, seen: Visit) -> None:
    page = seen.page
    await seen.go("/usage")
    await page.get_by_role("button", name="Group by").press("Enter")
    await page.get_by_role("link", name="API key", exact=True).press("Enter")
    await page.get_by_role("button", name="By API key").wait_for()
    expected = await reported(site, using, "key")
    whole = summed(expected)
    assert await _row(page, "laptop") == _figures(expected[using.laptop], whole)
    assert await _row(page, "ada@acme.example") == _figures(expected[using.person], whole)
    keys = page.get_by_role("button", name="API key", exact=True)
    await keys.press("Enter")
    await page.get_by_role("dialog", name="API key").wait_for()
    await page.keyboard.press("Escape")
    assert not await page.get_by_role("dialog", name="API key").is_visible()
    await keys.click()
    await page.get_by_role("checkbox", name="laptop").press("Space")
    await page.get_by_role("dialog", name="API key").get_by_role("button", name="Apply").press("Enter")
    await page.get_by_role("link", name="API key laptop").wait_for()
    assert await _row(page, "Total") == _figures(expected[using.laptop], expected[using.laptop])
    await page.get_by_role("link", name="API key laptop").click()
    await page.get_by_role("button", name="Export").click()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="CSV").click()
    path = Path(await (await downloading.value).path())
    written = await asyncio.to_thread(path.read_text)
    cost = sum(int(row["cost_micro_usd"]) for row in csv.DictReader(io.StringIO(written)))
    assert (await _row(page, "Total"))[4] == f"${cost / 1e6:.6f}"


async def _down_to_a_receipt(seen: Visit) -> None:
    """From a bar of the chart to its hours, to an hour's requests, to one of them."""
    page = seen.page
    await seen.go("/usage")
    today = page.locator("a.spot").last
    await today.focus()
    assert await today.locator(".tip").is_visible()
    await page.keyboard.press("Enter")
    await page.get_by_role("columnheader", name="Hour").wait_for()
    await page.locator("a.spot .hit").first.click()
    await page.get_by_role("heading", name="Requests").wait_for()
    assert await page.locator(".requests tbody tr").count() == 5
    await page.locator(".requests th a").first.click()
    await page.get_by_role("heading", name="Request Completed").wait_for()
    assert await page.get_by_role("img", name="Queued 250 ms").is_visible()
    assert "$0.0027" in (await page.locator(".sum").text_content() or "")
    id = await page.locator("code.id").text_content()
    await seen.go("/usage/requests")
    await page.get_by_label("Request ID").fill(id or "")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="Request Completed").wait_for()


async def _for_everybody(using: Using, seen: Visit) -> None:
    receipt = seen.page.url.removeprefix(seen.console)
    requests = f"/usage/requests?key={using.robot}"
    found = await seen.look_at("/", "/usage", "/usage?group=key&show=cost", requests, receipt)
    await seen.page.set_viewport_size({"width": NARROW, "height": 844})
    await seen.go("/usage")
    await seen.page.get_by_role("button", name="API key", exact=True).click()
    found += [f"menu: {one}" for one in await seen.serious()]
    box = await seen.page.locator("#filter-key").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= NARROW
    assert not found


def _figures(sums: list[int], whole: list[int]) -> list[str]:
    """As `_row` reads them: without units."""
    return [cell.split()[0] for cell in cells(sums, whole)]


async def _row(page: Page, name: str) -> list[str]:
    row = page.locator(".figures tr").filter(has=page.locator("th", has_text=name))
    cells = await row.locator("td").all_inner_texts()
    return [" ".join(cell.split("\n")[0].split()[:1]) for cell in cells]
