"""Versions under load, through the whole stack: activating, rolling back, deleting while answers run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.stack import CHECKOUT, Done, Stack
from tests.e2e.streams import Stream, read_stream
from tests.support.waiting import AwakeClock, eventually, until

WEIGHTS = CHECKOUT / "examples" / "sapling" / "weights" / "adapters"
LONG = "What is the capital of France, and of Spain, and of Italy, and of all the others that you know of?"
FIXED: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.fixture
def swap(stack: Stack) -> Iterator[str]:
    """An adapter of two versions, the second active; its name."""
    name = f"swap-{time.monotonic_ns()}"
    for weights in ("pirate", "upper-case"):
        added = stack.operate("adapter", "add", "acme", name, str(WEIGHTS / weights))
        assert added.returncode == 0, added.stderr
    yield name
    stack.operate("adapter", "delete", "acme", name)


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.demo["base_url"], api_key=stack.demo["api_key"], max_retries=0) as opened:
        yield opened


@pytest.fixture
async def streaming(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.client() as opened:
        yield opened


def api(stack: Stack, method: str, path: str, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {stack.demo['api_key']}"}
    return httpx.request(method, f"{stack.demo['base_url']}{path}", headers=headers, timeout=30, **options)


def ask(client: OpenAI, model: str) -> Any:
    """The model's name is in the prompt: nobody else has asked the same weights the same."""
    messages: list[Any] = [{"role": "user", "content": f"{model}: {LONG}"}]
    return client.chat.completions.create(model=model, messages=messages, **FIXED)


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_a_versions_first_request_finds_no_token_of_another(stack: Stack, client: OpenAI, swap: str) -> None:
    model = stack.model(swap)
    until(lambda: ask(client, model).model.endswith("@2"), 5, "version 2")
    assert cached(ask(client, model)) > 0, "the prompt is long enough to be found again"
    for version in (1, 2, 1):
        assert stack.operate("adapter", "activate", "acme", swap, str(version)).returncode == 0
        until(lambda v=version: served(client, model) == v, 5, f"version {version}")
    # Version 1 had never been asked before it was activated: its first answer computed its whole prompt.
    stack.wait_until_metered()
    found = [row.cached for row in stack.ledger().values() if row.model == f"{model}@1"]
    assert found.count(0) == 1
    assert len(found) > 1


def served(client: OpenAI, model: str) -> int:
    return int(ask(client, model).model.rpartition("@")[2])


async def operate(stack: Stack, command: str, *arguments: str) -> Done:
    """An operator's command on acme's adapters, while others go on."""
    return await asyncio.to_thread(stack.operate, "adapter", command, "acme", *arguments)


async def test_activation_is_atomic_under_load(stack: Stack, streaming: AsyncOpenAI, swap: str) -> None:
    model = stack.model(swap)
    seen: list[tuple[float, str]] = []
    stop = asyncio.Event()

    async def keep_asking() -> None:
        while not stop.is_set():
            began = clock.seconds
            answer = await streaming.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=3, temperature=0
            )
            seen.append((began, answer.model))

    running = Stream(model, LONG)
    reading = asyncio.create_task(
        read_stream(streaming, running, max_tokens=200, extra_body={"ignore_eos": True})
    )
    await running.received(2)
    async with AwakeClock() as clock:
        askers = [asyncio.create_task(keep_asking()) for _ in range(6)]
        await eventually(lambda: len(seen) >= 6)
        done = await operate(stack, "rollback", swap)
        switched = clock.seconds
        assert done.stdout.strip() == f"{model}@1"
        await eventually(lambda: any(began > switched + 1.0 for began, _ in seen))
        stop.set()
        await asyncio.gather(*askers)
    await reading
    assert running.error is None
    assert (running.finish_reason, running.usage.completion_tokens) == ("length", 200)
    assert {answer for _, answer in seen} == {f"{model}@1", f"{model}@2"}
    late = {answer for began, answer in seen if began > switched + 1.0}
    assert late == {f"{model}@1"}, "within a second everybody has the new one"


async def test_deleting_lets_running_answers_finish(stack: Stack, streaming: AsyncOpenAI) -> None:
    name = f"doomed-{time.monotonic_ns()}"
    assert (await operate(stack, "add", name, str(WEIGHTS / "pirate"))).returncode == 0
    model, prompt = stack.model(name), f"{name}: {LONG}"  # nobody has asked it these weights before
    alone = await read_stream(
        streaming, Stream(model, prompt), max_tokens=200, extra_body={"ignore_eos": True}
    )
    running = Stream(model, prompt)
    reading = asyncio.create_task(
        read_stream(streaming, running, max_tokens=200, extra_body={"ignore_eos": True})
    )
    await running.received(2)
    deleted = await asyncio.to_thread(api, stack, "DELETE", f"/adapters/{name}")
    assert deleted.status_code == 200, deleted.text
    gone = await asyncio.to_thread(api, stack, "GET", f"/adapters/{name}")
    assert gone.status_code == 404
    assert running.finish_reason is None, "deleted while it ran"
    await reading
    assert running.error is None
    assert (running.finish_reason, running.text) == ("length", alone.text)

    def refused() -> bool:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        return api(stack, "POST", "/chat/completions", json=body).status_code == 404

    assert await asyncio.to_thread(until, refused) < 1.0
    added = await operate(stack, "add", name, str(WEIGHTS / "upper-case"))
    assert added.stdout.strip() == f"{model}@1"
    again = await read_stream(streaming, Stream(model, prompt), max_tokens=8)
    assert again.error is None, "the name is free, and whoever takes it is not taken for the deleted one"
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    await operate(stack, "delete", name)
