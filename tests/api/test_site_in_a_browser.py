"""What people read, in a real browser: every page is accessible, in light and dark, on any screen."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from api.site.routes import SiteRoutes
from docs.site.build import build
from tests.admin.browsing import chromium, visit
from tests.api.conftest import World
from tests.support.serving import served

PAGES = ("/", "/docs/", "/docs/quotas/", "/docs/billing/", "/docs/nowhere")


async def test_every_page_is_for_everybody(world: World, tmp_path: Path) -> None:
    build(tmp_path / "site")
    app = FastAPI(title="Rootstock", docs_url=None, redoc_url=None)
    app.state.services = world.services
    SiteRoutes(app, world.services, tmp_path / "site").install()
    found = []
    async with chromium() as browser, served(app) as origin:
        context = await browser.new_context(reduced_motion="reduce")
        seen = await visit(context, origin)
        page = seen.page
        for path in PAGES:
            await page.goto(origin + path)
            found += await seen.looked_at(path, also_minor=True)
        await page.goto(f"{origin}/docs/quotas/")
        frames = page.locator(".md-typeset__scrollwrap")
        await frames.first.wait_for()
        assert await frames.count() == await page.locator(".md-typeset__scrollwrap[tabindex='0']").count()
    assert not found
    assert [one for one in seen.complaints if "404" not in one] == []
