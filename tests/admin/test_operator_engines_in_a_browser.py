"""The live page of engines in a real browser, over an engine process under load that is killed in the end."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from api.engine_watch import EngineWatch
from engine.client import EngineClient, EngineError
from engine.protocol import AdapterRef, PriorityClass
from tenants.operators.service import OperatorAccounts
from tests.admin.browsing import chromium, visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.operators import OPERATOR_EMAIL
from tests.engine.process.engines import EngineProcess, engine_process, read, submission
from tests.support.serving import served

ROWS = 16


@pytest.fixture
def process(redis_url: str) -> Iterator[EngineProcess]:
    folder = Path(tempfile.mkdtemp(prefix="rs-engine-"))
    sizes = {"max_rows": ROWS, "num_slots": 8, "num_blocks": 4000, "null_step_seconds": 0.02}
    for one in engine_process(folder, redis_url, null_depth=1, **sizes):
        one.start()
        yield one
    shutil.rmtree(folder)


@pytest.fixture
async def client(site: Site, process: EngineProcess) -> AsyncIterator[EngineClient]:
    """Its engine is the one that operators are shown."""
    client = EngineClient(process.endpoint, "test")
    watch = EngineWatch(lambda: [client], site.redis)
    site.engines.true = watch
    await client.start()
    await watch.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
    yield client
    await watch.close()
    await client.close()


@pytest.fixture
async def load(site: Site, client: EngineClient) -> AsyncIterator[None]:
    """More requests than there are rows, of two tenants, on adapters and the base, until the test ends."""
    pirate = await site.place.make_ready(await site.place.create("pirate"), "1")
    refs = [pirate, *(AdapterRef(f"{number:064x}", 4 * number) for number in range(1, 6)), None]
    classes = [PriorityClass.DEFAULT, PriorityClass.DEFAULT, PriorityClass.PRIORITY, PriorityClass.FLEX]
    number = 0

    async def ask(place: int) -> None:
        nonlocal number
        while True:
            number += 1
            wanted = submission(
                f"r{number}",
                60 + 37 * number % 200,
                tenant=site.place.tenants[number % 2],
                prompt_ids=[(number * 7 + at) % 30_000 for at in range(20 + 61 * number % 400)],
                adapter=refs[number % len(refs)],
                priority=classes[place % len(classes)],
            )
            try:
                await read(client.submit(wanted))
            except EngineError:
                await asyncio.sleep(0.2)

    asking = [asyncio.create_task(ask(place)) for place in range(ROWS + 8)]
    yield
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


DRAWN = "[...document.querySelectorAll('.strip path')].map((path) => path.getAttribute('d')).join()"
"""What the pictures of the last minutes are made of."""


async def test_the_pictures_move_while_the_engine_works_and_say_when_it_is_gone(
    site: Site, process: EngineProcess, load: None
) -> None:
    await OperatorAccounts(site.place.database, site.redis).add(OPERATOR_EMAIL, PASSWORD)
    async with chromium() as browser, served(site.whole) as origin:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        opened = await visit(context, origin)
        page = opened.page
        await opened.sign_in(OPERATOR_EMAIL, PASSWORD, "/operator/**")
        await opened.go("/operator/engines")

        await expect(page.get_by_role("heading", level=1)).to_contain_text("engine-0 Serving")
        await expect(page.locator(".tile").first).to_contain_text(f"Batch size{ROWS}of {ROWS}")
        await expect(page.locator("#slots ~ .scroll")).to_contain_text("pirate@1", timeout=10_000)
        link = page.locator("#shares ~ .scroll").get_by_role("link").first
        assert "/operator/tenants/tnt_" in str(await link.get_attribute("href"))

        # They move by themselves, and nothing that somebody holds on to is lost by it.
        await link.focus()
        first = await page.evaluate(DRAWN)
        await page.wait_for_function(f"(first) => {DRAWN} !== first", arg=first)
        await expect(link).to_be_focused()
        assert not await opened.looked_at("engines")

        hold = page.get_by_role("button", name="Pause")
        await hold.click()
        await expect(hold).to_have_attribute("aria-pressed", "true")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.wait_for_timeout(1500)
        assert not asked
        await hold.click()

        process.kill()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Gone", timeout=15_000)
        await expect(page.locator("#heard")).to_have_text("engine-0: Gone")
        await expect(page.locator(".problem")).to_contain_text("Showing its last known state")
        assert not opened.complaints
