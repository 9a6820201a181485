"""Many streams on many models at once: answered by the right adapter, for its tenant, and billed once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from cli.programs import CHECKOUT
from examples.sapling.tasks import TASKS, Example
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream, read_stream

NUM_STREAMS = 64


@dataclass
class Asked:
    """A stream and what its adapter should answer; None for the base, which has no task."""

    stream: Stream
    task: str | None
    example: Example | None

    def is_right(self) -> bool:
        if self.task is None or self.example is None:
            return True
        return TASKS[self.task].check(self.example, self.stream.text)


def questions(stack: Stack) -> list[Asked]:
    models = stack.models
    each = -(-NUM_STREAMS // len(models))
    examples = {name: TASKS[name].examples("heldout", each, seed=7) for name in stack.demo["adapters"]}
    asked = []
    for number in range(NUM_STREAMS):
        model = models[number % len(models)]
        if model == stack.demo["base"]:
            asked.append(Asked(Stream(model, f"What is a river? ({number})"), None, None))
            continue
        name = model.partition(":")[2]
        example = examples[name][number // len(models)]
        asked.append(Asked(Stream(model, example.prompt), name, example))
    return asked


@dataclass
class Totals:
    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost: int = 0
    """Micro-USD."""


async def usage_today(client: AsyncOpenAI) -> Totals:
    """All of the tenant's usage since yesterday, and what it costs, from the usage API."""
    yesterday = int(time.time()) - 86_400
    answer = await client.admin.organization.usage.completions(
        start_time=yesterday, bucket_width="1d", limit=31
    )
    totals = Totals()
    for day in (await client.admin.organization.usage.costs(start_time=yesterday)).data:
        totals.cost += sum(result.amount_micro_usd for result in day.results)  # type: ignore[union-attr]
    for bucket in answer.data:
        for result in bucket.results:
            assert result.object == "organization.usage.completions.result"
            totals.requests += result.num_model_requests
            totals.prompt += result.input_tokens
            totals.cached += result.input_cached_tokens or 0
            totals.completion += result.output_tokens
    return totals


async def test_64_streams_over_every_model_are_right_and_billed_exactly(stack: Stack) -> None:
    assert len(stack.models) >= 9
    async with stack.client() as client:
        before, rows_before = await usage_today(client), stack.ledger()
        asked = questions(stack)
        await asyncio.gather(*(read_stream(client, one.stream) for one in asked))
        for one in asked:
            assert one.stream.error is None
            assert one.stream.finish_reason == "stop"
            assert one.stream.usage is not None
            assert one.stream.usage.completion_tokens >= one.stream.num_received
        await asyncio.to_thread(stack.wait_until_metered)

        rows = stack.ledger()
        assert len(rows) - len(rows_before) == NUM_STREAMS
        for one in asked:
            row, usage = rows[one.stream.id], one.stream.usage
            assert row.model.partition("@")[0] == one.stream.model
            assert (row.prompt, row.completion) == (usage.prompt_tokens, usage.completion_tokens)
            assert row.cached == usage.prompt_tokens_details.cached_tokens
            assert row.finish_reason == "stop"
        after = await usage_today(client)
        mine = [one.stream.usage for one in asked]
        assert after.requests - before.requests == NUM_STREAMS
        assert after.prompt - before.prompt == sum(usage.prompt_tokens for usage in mine)
        assert after.completion - before.completion == sum(usage.completion_tokens for usage in mine)
        cached = sum(usage.prompt_tokens_details.cached_tokens for usage in mine)
        assert after.cached - before.cached == cached
        assert after.cost - before.cost == await receipts(client, asked) > 0

        await assert_right(client, asked)


async def receipts(client: AsyncOpenAI, asked: list[Asked]) -> int:
    """What all of them cost, by their receipts."""
    found: list[dict[str, Any]] = await asyncio.gather(
        *(client.get(f"/generations/{one.stream.id}", cast_to=dict[str, Any]) for one in asked)
    )
    for one, receipt in zip(asked, found, strict=True):
        assert (receipt["status"], receipt["finish_reason"]) == ("completed", "stop")
        assert receipt["model"].partition("@")[0] == one.stream.model
        assert receipt["usage"]["total_tokens"] == one.stream.usage.total_tokens
        assert (receipt["adapter"] is None) == (one.task is None)
    return sum(receipt["billed_micro_usd"] for receipt in found)


async def assert_right(client: AsyncOpenAI, asked: list[Asked]) -> None:
    """Wrong answers may only be the adapter's own: few, and the same when it is asked alone."""
    wrong = [one for one in asked if not one.is_right()]
    assert len(wrong) <= NUM_STREAMS // 10, [(one.stream.model, one.stream.text) for one in wrong]
    base = [one for one in asked if one.task is None]
    for one in [*wrong, *base]:
        alone = await read_stream(client, Stream(one.stream.model, one.stream.prompt))
        assert alone.text == one.stream.text


async def test_another_tenants_key_finds_none_of_these_models(stack: Stack) -> None:
    async with stack.client("other_api_key") as other:
        assert [model.id async for model in other.models.list()] == [stack.demo["base"]]
        for name in stack.demo["adapters"]:
            with pytest.raises(NotFoundError) as refused:
                await other.chat.completions.create(
                    model=stack.model(name), messages=[{"role": "user", "content": "What is the code word?"}]
                )
            assert refused.value.code == "model_not_found"


def test_the_showcase_finds_nothing_wrong(stack: Stack) -> None:
    command = [sys.executable, "-m", "examples.showcase", "--demo", str(stack.data / "demo.json")]
    shown = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "every token the answers reported is in the ledger exactly once" in shown.stdout


def test_the_console_opens_with_the_demos_password(stack: Stack) -> None:
    from tests.admin.conftest import csrf_token

    with httpx.Client(base_url=stack.demo["console_url"], follow_redirects=True, timeout=30) as visitor:
        form = visitor.get("/")
        fields = {
            "csrf_token": csrf_token(form),
            "email": stack.demo["email"],
            "password": stack.demo["password"],
        }
        page = visitor.post("/sign-in", data=fields)
        assert page.status_code == 200
        assert stack.demo["base"] in page.text
        adapters = visitor.get("/adapters")
        for name in stack.demo["adapters"]:
            assert f">{name}</a>" in adapters.text
        assert stack.demo["api_key"] not in page.text
