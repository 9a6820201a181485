"""Web pages of other origins, in a real browser: a page may use a key that has its origin, and no other."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import AsyncOpenAI
from playwright.async_api import Page

from tests.admin.browsing import chromium
from tests.e2e.stack import Stack

ASK = """async ({url, key, body}) => {
  try {
    const answer = await fetch(url + "/chat/completions", {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    const id = answer.headers.get("x-request-id");
    if (!body.stream) return { status: answer.status, id, answer: await answer.json() };
    const pieces = [];
    for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) return { status: answer.status, id, pieces };
      pieces.push(value);
    }
  } catch (error) {
    return { blocked: String(error) };
  }
}"""


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    """Of a web server that has a blank page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
async def page(origin: str) -> AsyncIterator[Page]:
    """In Chromium, at that page."""
    async with chromium() as browser:
        opened = await browser.new_page()
        await opened.goto(origin)
        yield opened


async def key_for(stack: Stack, *origins: str) -> str:
    async with stack.client() as client:
        projects = client.admin.organization.projects
        project = (await projects.list()).data[0]
        account = await projects.service_accounts.create(project.id, name="page")
        made: Any = await client.post(
            f"/organization/projects/{project.id}/service_accounts/{account.id}/api_keys",
            body={"name": "page", "origins": [*origins]},
            cast_to=object,
            options={"headers": {"authorization": f"Bearer {stack.demo['admin_api_key']}"}},
        )
    return str(made["value"])


async def test_a_page_uses_a_key_that_has_its_origin_and_no_other(
    stack: Stack, page: Page, origin: str
) -> None:
    async def ask(key: str, **fields: object) -> dict[str, Any]:
        body = {"model": stack.model("pirate"), "messages": [{"role": "user", "content": "Hello"}]} | fields
        asked = {"url": stack.demo["base_url"], "key": key, "body": body}
        found: dict[str, Any] = await page.evaluate(ASK, asked)
        return found

    ours, of_another = await key_for(stack, origin), await key_for(stack, "https://app.example")
    before = stack.ledger()
    answered = await ask(ours, max_tokens=5)
    assert answered["status"] == 200
    assert answered["answer"]["usage"]["completion_tokens"] == 5
    assert answered["id"].startswith("req_"), "scripts may read it"
    streamed = await ask(ours, stream=True, max_tokens=30, ignore_eos=True)
    assert streamed["status"] == 200
    assert "".join(streamed["pieces"]).endswith("data: [DONE]\n\n")
    assert len(streamed["pieces"]) > 1, "events arrive one after the other"
    for key in (of_another, stack.demo["api_key"], "rs_inference_unknown"):
        for stream in (False, True):
            refused = await ask(key, stream=stream)
            assert "Failed to fetch" in refused["blocked"]
    stack.wait_until_metered()
    assert len(stack.ledger()) == len(before) + 2, "what was refused has not run"
    async with AsyncOpenAI(base_url=stack.demo["base_url"], api_key=of_another, max_retries=0) as program:
        assert await program.models.list(), "no page: the key works"
