"""A request that a client sends ten times at once with one idempotency key: answered, and billed, once."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import APIStatusError, AsyncOpenAI

from tests.e2e.stack import Stack

KEY = {"idempotency-key": "order-4711"}
PROMPT: Any = [{"role": "user", "content": "Tell me about a river."}]


async def ask(client: AsyncOpenAI, model: str) -> tuple[int, bytes]:
    """Status and body, of a refusal too."""
    try:
        answer = await client.chat.completions.with_raw_response.create(
            model=model, messages=PROMPT, max_tokens=40, extra_headers=KEY, extra_body={"ignore_eos": True}
        )
    except APIStatusError as refused:
        return refused.status_code, refused.response.content
    return answer.http_response.status_code, answer.http_response.content


async def test_ten_equal_requests_at_once_are_one_row_of_the_ledger(stack: Stack) -> None:
    before = stack.ledger()
    async with stack.client() as client, stack.client(max_retries=20) as patient:
        # Half of them send it again when they are refused, as the stock client does of itself.
        found = await asyncio.gather(
            *(ask(asking, stack.model("pirate")) for asking in (client, patient) for _ in range(5))
        )
        at_once, in_the_end = found[:5], found[5:]
        (body,) = {body for status, body in found if status == 200}
        assert [status for status, _ in in_the_end] == [200] * 5
        assert all(b"idempotency_in_progress" in body for status, body in at_once if status != 200)
        assert {status for status, _ in at_once} <= {200, 409}
        assert await ask(client, stack.model("pirate")) == (200, body)
    stack.wait_until_metered()
    (row,) = [row for request_id, row in stack.ledger().items() if request_id not in before]
    assert f'"id":"{row.request_id}"'.encode() in body.replace(b'": ', b'":')
    assert row.completion == 40
