"""Drafts as a stock client sees them: the same answers, several tokens at a time, each of them billed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.stack import Stack

QUESTION: Any = [{"role": "user", "content": "Tell me a story about a dog."}]
ASKED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "stop": ["Ben"]},
    {"temperature": 0, "max_tokens": 17},
    {"temperature": 0.8, "seed": 5, "frequency_penalty": 0.5},
]


@pytest.fixture
def drafting(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("ROOTSTOCK_ENGINE_SPECULATION", "true")
    stack = Stack(tmp_path / "data")
    try:
        stack.start()
        yield stack
    finally:
        stack.finish()


async def streamed(client: AsyncOpenAI, model: str, asked: dict[str, Any]) -> tuple[str, int, int]:
    """The text, its tokens, and the events that brought it."""
    text, num_tokens, num_events = "", 0, 0
    async for event in await client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **asked
    ):
        num_tokens = event.usage.completion_tokens if event.usage else num_tokens
        for choice in event.choices:
            text += choice.delta.content or ""
            num_events += bool(choice.delta.content)
    return text, num_tokens, num_events


async def test_answers_with_drafts_are_those_without_and_every_token_is_billed(drafting: Stack) -> None:
    model = drafting.demo["base"]
    drafting.wait_until_metered()
    before = sum(row.completion for row in drafting.ledger().values())
    num_billed = 0
    async with drafting.client() as client:
        for asked in ASKED:
            whole = await client.chat.completions.create(model=model, messages=QUESTION, **asked)
            assert whole.usage is not None
            num_tokens = whole.usage.completion_tokens
            rounds = [await streamed(client, model, asked) for _ in range(3)]
            assert {(text, num) for text, num, _ in rounds} == {
                (whole.choices[0].message.content, num_tokens)
            }
            num_billed += 4 * num_tokens
            _, _, num_events = rounds[-1]
            assert num_events <= num_tokens / 2, "what was answered before comes several tokens at a time"
    drafting.wait_until_metered()
    assert sum(row.completion for row in drafting.ledger().values()) - before == num_billed
    accepted = drafting.counter("rootstock_engine_accepted_tokens_total")
    assert 0.5 * num_billed < accepted < num_billed
