"""The way of an adapter as a person goes it in the console, in Chromium, on the running stack: from two files
on a disk to answers of its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, AuthenticationError
from playwright.async_api import BrowserContext, Page, Request, Response, expect

from examples.sapling.tasks import TASKS
from tests.admin.browsing import Visit, chromium, visit
from tests.e2e.onboarding import CONFIG, WEIGHTS, sapling_adapter, widened_adapter
from tests.e2e.stack import Stack
from tests.support.slow_line import SlowLine, slow_line
from tests.support.waiting import eventually

NAME = "harbour"
FIRST, SECOND = TASKS["sql"], TASKS["upper-case"]
UPLOAD_BYTES_PER_S = 2_000_000
"""Slow enough to see it, and to be cut off in the middle of a part."""
NUM_SAMPLES = 96
"""Enough for calibration to take seconds, so that the page is seen to follow it."""
PATIENCE_MS = 60_000
# What of the work was on the page, as it came and went.
WATCH_WORK = """() => {
  window.watched = [];
  const look = () => {
    const work = document.querySelector(".work");
    if (!work) return;
    const phase = work.querySelector("[aria-current=step]")?.textContent ?? "";
    const told = [work.querySelector("progress").value, phase];
    if (String(told) !== String(watched.at(-1))) watched.push(told);
  };
  look();
  new MutationObserver(look).observe(document.querySelector("main"), { childList: true, subtree: true });
}"""


@pytest.fixture
async def context() -> AsyncIterator[BrowserContext]:
    async with chromium() as browser:
        made = await browser.new_context(viewport={"width": 1280, "height": 900})
        made.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield made


async def drop(page: Page, onto: str, *files: Path) -> None:
    """As from the desktop's file manager: the browser itself is told of the drag."""
    box = await page.locator(onto).bounding_box()
    assert box is not None
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 20}
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    session = await page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        await session.send("Input.dispatchDragEvent", {"type": kind, **where, "data": data})
    await session.detach()


def slot(page: Page, name: str) -> Any:
    return page.locator(f'[data-slot="{name}"]')


async def test_an_adapter_comes_in_through_the_console_and_answers(
    stack: Stack, context: BrowserContext, tmp_path: Path
) -> None:
    first = widened_adapter(FIRST.name, tmp_path / "first", 64)
    second = sapling_adapter(SECOND.name, tmp_path / "second", 50)
    (tmp_path / "own.jsonl").write_text(
        "".join(
            json.dumps({"prompt": one.prompt, "completion": one.answer}) + "\n"
            for one in FIRST.examples("train", NUM_SAMPLES, seed=3)
        )
    )
    async with slow_line(stack.url) as line:
        seen = await visit(context, line.origin)
        await seen.sign_in(stack.demo["email"], stack.demo["password"])
        seen = await upload_in_pieces(seen, line, first, tmp_path)
        adapter = await watch_it_get_ready(seen)
        await read_the_report(seen)
        model = stack.model(NAME)
        await compare(seen, model, stack.demo["base"])
        await add_a_version(seen, adapter, second)
        await answers_like(seen, model, SECOND.name)
        await roll_back(seen, adapter)
        await answers_like(seen, model, FIRST.name)
        await make_a_key_and_use_it(seen, stack, model)
        await delete(seen, adapter)
    assert not seen.complaints


async def upload_in_pieces(seen: Visit, line: SlowLine, files: Path, folder: Path) -> Visit:
    """Over a slow line that breaks off, in a window that is closed in the middle. Returns the window that
    finished it.
    """
    page = seen.page
    broken = folder / "broken" / CONFIG
    broken.parent.mkdir()
    broken.write_text(json.dumps(json.loads((files / CONFIG).read_text()) | {"use_dora": True}))
    await seen.go("/adapters/new")
    line.bytes_per_s = UPLOAD_BYTES_PER_S
    kept: list[Response] = []
    page.on("response", lambda one: kept.append(one) if one.url.endswith("/parts") and one.ok else None)
    await drop(page, ".drop", files / WEIGHTS, broken, folder / "own.jsonl")
    bar = await slot(page, "weights").locator("progress").element_handle()
    await eventually(lambda: len(kept) == 3)  # each file's smallest part: the last of the weights
    await page.wait_for_function("bar => bar.value > 5 && bar.value < 95", arg=bar)
    line.cut()
    note = slot(page, "weights").locator("[data-note]")
    await expect(note).to_contain_text("Retrying")
    line.mend()
    await expect(page.locator("#problem-config")).to_contain_text("use_dora")
    assert not await page.locator("#problem-weights").is_visible()
    await expect(slot(page, "config").locator("[data-note]")).to_have_text("Rejected")
    await expect(note).to_contain_text("MB of")
    assert not [one for one in seen.complaints if "Failed to load resource" not in one], "but the cut"
    await page.close()

    again = await visit(page.context, line.origin)
    line.bytes_per_s = None
    parts: list[Request] = []
    again.page.on("request", lambda one: parts.append(one) if one.url.endswith("/parts") else None)
    await again.go("/adapters/new")
    note = slot(again.page, "weights").locator("[data-note]")
    await expect(note).to_have_text("Uploaded and valid")
    assert len(parts) == 1, "what had come is not sent again"
    await slot(again.page, "config").locator("input[type=file]").set_input_files(files / CONFIG)
    await expect(again.page.locator("[data-status]")).to_have_text("All files uploaded.")
    assert not await again.page.locator("#problem-config").is_visible()
    await again.page.fill("#name", NAME)
    assert not await again.serious()
    await again.page.get_by_role("button", name="Create adapter").click()
    return again


async def watch_it_get_ready(seen: Visit) -> str:
    """The page of the adapter, below the console."""
    page = seen.page
    await page.locator("#live").wait_for()
    await page.evaluate(WATCH_WORK)
    await expect(page.locator("h1 .badge")).to_have_text("Ready")
    await expect(page.locator(".work")).to_have_count(0)
    watched: list[tuple[float, str]] = await page.evaluate("watched")
    shares = [share for share, _ in watched]
    assert shares == sorted(shares)
    assert any(0 < share < 100 for share in shares), watched
    assert "Calibrate" in {phase for _, phase in watched}
    return page.url.removeprefix(seen.console)


async def read_the_report(seen: Visit) -> None:
    page = seen.page
    await page.get_by_role("link", name="Version 1", exact=True).click()
    await page.get_by_text("Passed all checks").wait_for()
    await page.get_by_text("Your samples", exact=True).wait_for()
    assert await page.locator("figure.plot svg").count() >= 3
    for plot in await page.locator("figure.plot svg").all():
        box = await plot.bounding_box()
        assert box is not None
        assert box["height"] > 100
    assert not await seen.serious()
    await page.go_back()


async def compare(seen: Visit, model: str, base: str) -> None:
    """Both answer the same question at once, beside each other, and each in its own way."""
    page = seen.page
    asked: list[Request] = []
    ended: list[Request] = []
    page.on("request", lambda one: asked.append(one) if one.url.endswith("/chat") else None)
    page.on("requestfinished", lambda one: ended.append(one) if one.url.endswith("/chat") else None)
    await page.get_by_role("link", name="Compare with base model").click()
    await page.get_by_text("Parameters").click()
    await page.fill("#temperature", "0")
    speakers = page.locator(".speaker")
    await expect(speakers.locator("h2")).to_have_text([model, base])
    left, right = [await one.bounding_box() for one in await speakers.all()]
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    example = FIRST.examples(n=1)[0]
    await page.fill("#message", example.prompt)
    await page.keyboard.press("Enter")
    await expect(page.locator("[data-measured]:not(:empty)")).to_have_count(2)
    assert [json.loads(one.post_data or "")["model"] for one in asked] == [model, base]
    first_end = min(one.timing["responseStart"] + one.timing["startTime"] for one in ended)
    assert all(one.timing["startTime"] <= first_end for one in asked), "neither waited for the other"
    tuned, plain = await page.locator(".turn.assistant .words").all_text_contents()
    assert FIRST.check(example, tuned)
    assert not FIRST.check(example, plain)


async def add_a_version(seen: Visit, adapter: str, files: Path) -> None:
    """It is not served before it is activated."""
    page = seen.page
    await seen.go(f"{adapter}/versions/new")
    await drop(page, ".drop", files / WEIGHTS, files / CONFIG)
    await page.get_by_text("Options").click()
    await page.get_by_label("Activate as soon as it's ready").uncheck()
    await page.get_by_role("button", name="Create version").click()
    activate = page.get_by_role("button", name="Activate version 2")
    await activate.wait_for()
    await activate.click()
    await page.get_by_role("dialog").get_by_role("button", name="Activate").click()
    await page.get_by_text("Version 2 is now active").wait_for()


async def roll_back(seen: Visit, adapter: str) -> None:
    await seen.go(adapter)
    await seen.page.get_by_role("button", name="Roll back").first.click()
    await seen.page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await seen.page.get_by_text("Rolled back.").wait_for()


async def answers_like(seen: Visit, model: str, task: str) -> None:
    """In the playground, once the change has reached every process."""
    page = seen.page
    await seen.go(f"/playground?model={model}")
    await page.get_by_text("Parameters").click()
    await page.fill("#temperature", "0")
    example = TASKS[task].examples(n=1, seed=1)[0]
    for attempt in range(20):
        await page.fill("#message", example.prompt)
        await page.keyboard.press("Enter")
        await expect(page.locator("[data-measured]:not(:empty)")).to_have_count(attempt + 1)
        answer = await page.locator(".turn.assistant .words").last.inner_text()
        if TASKS[task].check(example, answer):
            return
        await page.wait_for_timeout(100)
    pytest.fail(f"{model} does not answer like {task}: {answer}")


async def make_a_key_and_use_it(seen: Visit, stack: Stack, model: str) -> None:
    page = seen.page
    await seen.go("/keys/new")
    await page.fill("#name", "harbour master")
    await page.get_by_role("button", name="Create key").click()
    secret = await page.input_value("#secret")
    example = FIRST.examples(n=1, seed=2)[0]
    question: Any = [{"role": "user", "content": example.prompt}]
    async with AsyncOpenAI(base_url=stack.demo["base_url"], api_key=secret, max_retries=0) as client:
        answer = await client.chat.completions.create(model=model, messages=question, temperature=0)
        assert FIRST.check(example, answer.choices[0].message.content or "")
        await seen.go("/keys")
        await page.get_by_role("link", name="harbour master").click()
        await page.get_by_role("button", name="Revoke").first.click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await page.get_by_role("status").wait_for()

        async def is_refused() -> bool:
            try:
                await client.chat.completions.create(model=model, messages=question, max_tokens=1)
            except AuthenticationError:
                return True
            return False

        await eventually(is_refused, seconds=5)


async def delete(seen: Visit, adapter: str) -> None:
    await seen.go(adapter)
    await seen.page.get_by_role("button", name="Delete adapter").click()
    await seen.page.fill("#delete-name", NAME)
    await seen.page.get_by_role("dialog").get_by_role("button", name="Delete adapter").click()
    await seen.page.get_by_text(f"{NAME} was deleted.").wait_for()
