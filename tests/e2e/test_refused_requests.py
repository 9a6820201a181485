"""Calls that the API refuses, on the running stack: the worker stores them, and the console lists them."""

from __future__ import annotations

import pytest
from openai import APIStatusError
from playwright.async_api import Locator, Page

from tests.admin.browsing import chromium, visit
from tests.e2e.stack import Stack
from tests.support.waiting import eventually

REFUSED = {
    "model_not_found": {"model": "sapling:nowhere"},
    "context_length_exceeded": {"messages": [{"role": "user", "content": "word " * 20_000}]},
}
"""What is wrong with each call, by the code of its error."""
SECONDS = 60.0
"""Until the worker has stored what an API process recorded."""


async def refuse(stack: Stack, code: str) -> tuple[str, int, str]:
    """Sends a call. Returns the id, the status and the message of the response."""
    call = {"model": stack.demo["base"], "messages": [{"role": "user", "content": "Hi"}], **REFUSED[code]}
    async with stack.client() as client:
        with pytest.raises(APIStatusError) as refused:
            await client.chat.completions.create(**call)
    response = refused.value.response
    error = response.json()["error"]
    assert error["code"] == code
    return response.headers["x-request-id"], response.status_code, error["message"]


async def row_of(page: Page, url: str, request_id: str) -> Locator:
    """Loads the list until it has the request. Returns its row."""
    row = page.locator(".requests tbody tr").filter(has_text=request_id)

    async def is_listed() -> bool:
        await page.goto(url)
        return await row.count() == 1

    await eventually(is_listed, SECONDS)
    return row


async def test_a_refused_call_appears_in_the_list_of_requests(stack: Stack) -> None:
    calls = [(code, *await refuse(stack, code)) for code in REFUSED]
    async with chromium() as browser:
        seen = await visit(await browser.new_context(), stack.url)
        await seen.sign_in(stack.demo["email"], stack.demo["password"])
        page = seen.page
        for code, request_id, status, message in calls:
            row = await row_of(page, f"{seen.console}/usage/requests?status=failed", request_id)
            assert await row.locator(".badge").text_content() == f"{status} {code}"
            assert await row.locator(".why").text_content() == message
            # By its id, too: the page of the one call.
            await page.fill("#id", request_id)
            await page.get_by_role("button", name="Find").click()
            await page.wait_for_url("**/usage/requests/refused/*")
            assert await page.locator(".said").text_content() == message
            assert request_id in await page.locator("code.id").all_text_contents()
        assert not seen.complaints
