"""The console in a real browser: what scripts do there, that the policy lets nothing else run, and that those
who hear or type instead of looking get along.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from playwright.async_api import Browser, Route, expect

from billing.rates import Rate
from engine.gauges import DraftCounts
from engine.protocol import Usage
from tenants.actors import OPERATOR
from tests.admin.browsing import Visit, visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.test_keys import XSS
from tests.admin.test_operator_engines import report, view
from tests.support.booked import request, write
from tests.support.waiting import eventually

ANSWER = "Hello there, hello world."


async def test_every_page_is_for_everybody(site: Site, seen: Visit, browser: Browser) -> None:
    made = await site.place.create("pirate")
    ref = await site.place.make_ready(made, "1")
    drafts = [DraftCounts(site.tenant_id, ref.digest, 1200, 900, 400)]
    site.engines.reports = [report(view=view(drafts=drafts))]
    await site.place.create("coming", "sql")
    key = await site.keys.create(site.tenant_id, f"robot {XSS}", OPERATOR)
    await site.account.invites.create(site.tenant_id, "grace@acme.example", "developer", OPERATOR)
    adapter = f"/adapters/{made.adapter.id}"
    pages = ["/", "/adapters", adapter, f"{adapter}/versions/1", "/adapters/new", "/keys", f"/keys/{key.id}"]
    (me,) = await site.account.members.list(site.tenant_id)
    pages += [
        "/keys/new",
        "/members",
        f"/members/{me.id}",
        "/members/invite",
        "/playground",
        "/batches/new",
        "/settings",
        "/audit",
        "/audit/check",
        "/sla",
    ]
    found = await seen.look_at(*pages)
    await seen.go(adapter)
    drafts_card = seen.page.get_by_role("region", name="Speculation")
    await expect(drafts_card).to_contain_text("75.00 % of drafted tokens accepted")
    await expect(drafts_card).to_contain_text("2.25 tokens gained per step with drafts")
    stranger = await visit(await browser.new_context(), seen.console.removesuffix("/console"))
    for path in ("/sign-in", "/join"):
        await stranger.go(path)
        found += [f"{path}: {one}" for one in await stranger.serious()]
    assert not found


async def test_a_narrow_screen_has_its_menu_behind_a_button(seen: Visit) -> None:
    page = seen.page
    await page.set_viewport_size({"width": 390, "height": 844})
    keys = page.get_by_role("link", name="API keys")
    assert not await keys.is_visible()
    await page.get_by_role("button", name="Menu").press("Enter")
    assert await keys.is_visible()
    await page.keyboard.press("Escape")
    assert not await keys.is_visible()
    await page.get_by_role("button", name="Menu").click()
    await keys.click()
    await page.get_by_role("heading", name="Create your first API key").wait_for()


async def test_a_key_is_copied_and_not_made_twice(site: Site, seen: Visit) -> None:
    page = seen.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await seen.go("/keys/new")
    await page.fill("#name", "laptop")
    await page.get_by_role("button", name="Create key").click()
    secret = await page.input_value("#secret")
    field, sample = page.locator("[data-copy]"), page.locator("[data-copy-code]")
    await field.click()
    await expect(field).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == secret
    await page.locator(".snippets label", has_text="Python").click()
    await sample.click()
    await expect(sample).to_have_text("Copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("from openai import OpenAI")
    assert f'api_key="{secret}"' in copied
    await page.reload()
    await page.get_by_role("heading", name="laptop").wait_for()
    assert secret not in await page.content()
    assert len(await site.keys.list(site.tenant_id)) == 1


async def test_an_invitations_code_stays_in_the_browser(site: Site, seen: Visit, browser: Browser) -> None:
    await seen.go("/members/invite")
    await seen.page.fill("#email", "grace@acme.example")
    await seen.page.get_by_role("button", name="Create invitation").click()
    link = await seen.page.input_value("#link")
    guest = await visit(await browser.new_context(), seen.console.removesuffix("/console"))
    asked: list[str] = []
    guest.page.on("request", lambda request: asked.append(request.url))
    await guest.page.goto(link)
    await guest.page.fill("#password", PASSWORD)
    await guest.page.fill("#again", PASSWORD)
    token = link.partition("#")[2]
    assert guest.page.url == f"{guest.console}/join"
    assert not any(token in url.partition("#")[0] for url in asked)
    await guest.page.get_by_role("button", name="Join").click()
    await guest.page.get_by_text("Welcome to ours. Your role is developer.").wait_for()
    assert not guest.complaints


async def test_an_adapter_answers_beside_its_base(site: Site, seen: Visit) -> None:
    await site.place.make_ready(await site.place.create("pirate"), "1")
    site.engine.script = lambda submit: site.engine.says(submit, ANSWER)
    page = seen.page
    await seen.go("/playground?model=sapling:pirate")
    await page.get_by_label("Compare with").select_option("sapling")
    await page.fill("#message", f"It's {XSS}")
    await page.keyboard.press("Enter")
    measured = page.locator("[data-measured]:not(:empty)")
    await measured.nth(1).wait_for()
    assert await page.locator(".turn.assistant .words").all_text_contents() == [ANSWER, ANSWER]
    for one in await measured.all_text_contents():
        assert "input tokens" in one
        assert "first token" in one
    assert await page.locator(".turn.user .words").first.text_content() == f"It's {XSS}"
    await page.fill("#message", "And then?")
    code = await page.locator("[data-snippets] pre code").all_text_contents()
    assert all("sapling:pirate" in one and "And then?" in one and ANSWER in one for one in code)
    assert "It'\\''s <img" in code[0]
    await page.keyboard.press("Enter")
    await measured.nth(3).wait_for()
    adapters = [submit.adapter is not None for submit in site.engine.submitted]
    assert sorted(adapters) == [False, False, True, True]
    # The second question has the first and its answer before it.
    lens = [len(submit.prompt_ids) for submit in site.engine.submitted]
    assert min(lens[2:]) > max(lens[:2])
    assert await seen.serious() == []


async def test_thinking_is_apart_from_the_answer(site: Site, seen: Visit) -> None:
    page, asked = seen.page, []
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning": "What "},
        {"reasoning": XSS},
        {"content": ANSWER},
    ]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    usage = {
        "prompt_tokens": 3,
        "completion_tokens": 1234,
        "completion_tokens_details": {"reasoning_tokens": 1200},
    }
    chunks.append({"choices": [], "usage": usage})

    async def answer(route: Route) -> None:
        asked.append(route.request.post_data_json["messages"])
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        await route.fulfill(body=body, content_type="text/event-stream")

    await page.route("**/playground/chat", answer)
    await seen.go("/playground")
    for number in range(2):
        await page.fill("#message", "Hello")
        await page.keyboard.press("Enter")
        await page.locator("[data-measured]:not(:empty)").nth(number).wait_for()

    assert await page.locator(".turn.assistant .words").first.text_content() == ANSWER
    thoughts = page.locator("[data-thoughts]").nth(1)
    assert not await thoughts.is_visible()
    await page.locator("[data-thinking]:visible summary").first.click()
    assert await thoughts.is_visible()
    assert await thoughts.text_content() == f"What {XSS}"
    assert "1,234 output tokens, 1,200 reasoning" in (
        await page.locator("[data-measured]").nth(1).text_content() or ""
    )
    assert asked[1][1] == {"role": "assistant", "content": ANSWER, "reasoning": f"What {XSS}"}
    assert await seen.serious() == []


async def test_an_answer_can_be_stopped_and_begun_anew(site: Site, seen: Visit) -> None:
    site.engine.script = lambda submit: site.engine.says(submit, "Hello world " * 30, delay=0.05)
    page = seen.page
    await seen.go("/playground")
    await page.fill("#message", "Go on and on")
    await page.get_by_role("button", name="Send").click()
    await page.locator(".turn.assistant .words:not(:empty)").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_text("Stopped. Tokens generated so far are billed").wait_for()
    await eventually(lambda: bool(site.engine.aborted), seconds=20)
    await page.get_by_role("button", name="Clear").click()
    assert await page.locator(".turn").count() == 0
    site.engine.ready = False
    await page.fill("#message", "Are you there?")
    await page.keyboard.press("Enter")
    await page.locator(".turn .problem").wait_for()
    assert "engine that serves this model is not available" in (
        await page.locator(".turn .problem").text_content() or ""
    )
    assert await page.input_value("#message") == "Are you there?"
    assert [one for one in seen.complaints if "503" not in one] == []
    seen.complaints.clear()


async def test_a_working_snippet_is_three_clicks_away_and_the_cost_by_adapter_one(
    site: Site, seen: Visit
) -> None:
    made = await site.place.create("pirate")
    await site.place.make_ready(made, "1")
    usage = {"usage": Usage(1000, 0, 100), "rate": Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)}
    named = {"model": "sapling:pirate@1", "adapter_id": made.adapter.id}
    used = request(site.tenant_id, datetime.now(UTC).timestamp(), **named, **usage)
    await write(site.place.database, [used])
    page = seen.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("link", name="Create API key").click()
    await page.get_by_label("Name").fill("demo")
    await page.get_by_role("button", name="Create key").click()
    await page.locator(".snippets [data-copy-code]").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    (key,) = re.findall(r"Bearer (rs_inference_\w+)", copied)
    shown = await site.keys.list(site.tenant_id)
    assert [row.name for row, *_ in shown if key.startswith(row.prefix)] == ["demo"]
    assert "/v1/chat/completions" in copied
    await seen.go("/")
    await page.get_by_role("link", name="Spent in").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="pirate"))
    assert "$0.003500" in (await row.text_content() or "")
    assert not await seen.serious()
