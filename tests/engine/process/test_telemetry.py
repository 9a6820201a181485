"""What others see of running engines: metrics under vLLM's names, by which a picker chooses; and spans, which
bill what the journal does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving_spans
from engine.client import EngineClient
from engine.protocol import AdapterRef
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    engine_process,
    journal_events,
    read,
    submission,
    until,
)

SLOTS = 4
ADAPTERS = [f"base:adapter-{number}" for number in range(2 * SLOTS)]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def ref(name: str) -> AdapterRef:
    return AdapterRef(hashlib.sha256(name.encode()).hexdigest(), 8)


class Running:
    """Two engines, their clients and the collector that gets their spans."""

    def __init__(self, engines: list[EngineProcess], receiver: OtlpReceiver, redis_url: str) -> None:
        self.engines = engines
        self.receiver = receiver
        self.redis_url = redis_url
        self.clients: list[EngineClient] = []

    async def scrape(self, number: int) -> dict[str, Metric]:
        """By name, the families that an engine's /metrics has."""
        address = next(
            line["address"]
            for line in map(json.loads, self.engines[number].read_log().splitlines())
            if line["event"] == "metrics are served"
        )
        async with httpx.AsyncClient() as client:
            answer = await client.get(address)
        assert answer.status_code == 200
        return {family.name: family for family in text_string_to_metric_families(answer.text)}


@contextmanager
def two_engines(redis_url: str) -> Iterator[Running]:
    with ExitStack() as opened:
        receiver = opened.enter_context(receiving_spans())
        engines = []
        for number in range(2):
            folder = Path(tempfile.mkdtemp(prefix="rs-engine-"))
            opened.callback(shutil.rmtree, folder)
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
                patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
                process = opened.enter_context(
                    contextmanager(engine_process)(
                        folder,
                        redis_url,
                        engine_id=f"engine-{number}",
                        null_step_seconds=0.001,
                        num_slots=SLOTS,
                        metrics_endpoint="127.0.0.1:0",
                    )
                )
                process.start()
            engines.append(process)
        yield Running(engines, receiver, redis_url)


@pytest.fixture
async def running(redis_url: str) -> AsyncIterator[Running]:
    with two_engines(redis_url) as running:
        for engine in running.engines:
            client = EngineClient(engine.endpoint, "test")
            await client.start()
            async with asyncio.timeout(60):
                await client.wait_ready()
            running.clients.append(client)
        yield running
        for client in running.clients:
            await client.close()


class Picker:
    """Chooses an engine for a model as the Gateway API's endpoint pickers do: one that has the adapter, else
    one with room for another, else one that waits for it; of equals the one with fewer requests.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self.sent: Counter[tuple[str, int]] = Counter()

    async def pick(self, model: str) -> int:
        scored = [(await self._score(number, model), -number) for number in range(2)]
        best = max(scored)
        number = -best[1]
        self.sent[model, number] += 1
        return number

    async def _score(self, number: int, model: str) -> tuple[float, float]:
        metrics = await self._running.scrape(number)
        (adapters,) = metrics["vllm:lora_requests_info"].samples
        active = names(adapters.labels["running_lora_adapters"])
        waiting = names(adapters.labels["waiting_lora_adapters"])
        if model in active:
            fit = 1.0
        elif len(active) + len(waiting) < int(adapters.labels["max_lora"]):
            fit = 0.8
        else:
            fit = 0.6 if model in waiting else 0.0
        # A picker also spreads adapters: of two with room, the one with fewer of them.
        return fit, -float(len(active) + len(waiting))


def names(listed: str) -> list[str]:
    return listed.split(",") if listed else []


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in metrics.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found


async def test_a_picker_sends_an_adapters_requests_to_the_engine_that_holds_it(running: Running) -> None:
    picker = Picker(running)

    async def ask(model: str, name: str) -> int:
        number = await picker.pick(model)
        request = submission(name, 4, adapter=ref(model), model=model)
        await read(running.clients[number].submit(request))
        return number

    for model in ADAPTERS:
        number = await ask(model, f"first-{model}")
        async with asyncio.timeout(30):
            while model not in await listed(running, number):  # noqa: ASYNC110 - no event of ours tells
                await asyncio.sleep(0.02)
    for turn in range(5):
        for model in ADAPTERS:
            await ask(model, f"{turn}-{model}")

    where = {model: [number for name, number in picker.sent if name == model] for model in ADAPTERS}
    assert all(len(numbers) == 1 for numbers in where.values()), "an adapter's requests went to two engines"
    assert Counter(number for (number,) in where.values()) == {0: SLOTS, 1: SLOTS}
    async with asyncio.timeout(30):
        while True:
            scraped = [await running.scrape(number) for number in range(2)]
            ended = [
                value(metrics, "vllm:request_success_total", finished_reason="length") for metrics in scraped
            ]
            told = [value(metrics, "vllm:generation_tokens_total") for metrics in scraped]
            if sum(ended) == 6 * len(ADAPTERS) and sum(told) == 4 * 6 * len(ADAPTERS):
                break  # tokens are counted by the step loop, and told a moment later
            await asyncio.sleep(0.02)
    assert ended == [6 * SLOTS, 6 * SLOTS]
    await until(
        lambda: [client.stats and client.stats.adapter_loads for client in running.clients] == [SLOTS, SLOTS]
    )
    for metrics in scraped:
        assert value(metrics, "vllm:e2e_request_latency_seconds_count", model_name="base") == 6 * SLOTS
        assert value(metrics, "vllm:time_to_first_token_seconds_count") == 6 * SLOTS
        assert value(metrics, "vllm:inter_token_latency_seconds_count") == 3 * 6 * SLOTS
        assert value(metrics, "vllm:generation_tokens_total") == 4 * 6 * SLOTS
        (cache,) = metrics["vllm:cache_config_info"].samples
        assert (cache.labels["block_size"], cache.labels["num_gpu_blocks"]) == ("16", "32767")
        types = {name: metrics[f"vllm:{name}"].type for name in ("num_requests_waiting", "prompt_tokens")}
        assert types == {"num_requests_waiting": "gauge", "prompt_tokens": "counter"}


async def listed(running: Running, number: int) -> list[str]:
    (adapters,) = (await running.scrape(number))["vllm:lora_requests_info"].samples
    return names(adapters.labels["running_lora_adapters"])


async def test_an_engines_spans_follow_each_other_and_bill_what_the_journal_does(running: Running) -> None:
    client, model = running.clients[0], ADAPTERS[0]
    traceparent = f"00-{TRACE}-{PARENT}-01"
    requests = [
        submission(f"traced-{number}", 3 + number, traceparent=traceparent, prompt_ids=[1] * (number + 20))
        for number in range(20)
    ]
    requests.append(submission("on-adapter", 2, traceparent=traceparent, adapter=ref(model), model=model))
    others = [submission(f"untraced-{number}", 3) for number in range(5)]
    gone = submission("left", 4000, traceparent=traceparent)
    generations = [client.submit(request) for request in (*requests, *others)]
    leaving = client.submit(gone)
    await until(lambda: leaving.has_unread)
    leaving.abort()
    for generation in (*generations, leaving):
        await read(generation)
    num_traced = len(requests) + 1
    await until(lambda: len(running.receiver.named("engine request")) == num_traced)

    ledger = billed(journal_events(running.redis_url))
    children: dict[str, list[ReceivedSpan]] = {}
    for span in running.receiver.spans:
        children.setdefault(span.parent_id, []).append(span)
    for span in running.receiver.named("engine request"):
        request_id = span.attributes["rootstock.request.id"]
        assert not request_id.startswith("untraced")
        assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
        parts = sorted(children[span.span_id], key=lambda part: part.start_ns)
        assert [part.name for part in parts] == ["queue", "prefill", "decode", "journal"]
        ends = [span.start_ns, *(part.end_ns for part in parts)]
        assert [part.start_ns for part in parts] == ends[:-1]
        assert ends[-1] == span.end_ns
        event = ledger[request_id]
        assert event.scheduled_at is not None
        assert event.first_token_at is not None
        assert abs(parts[0].end_ns - event.scheduled_at * 1e9) < 1e3
        assert abs(span.events["first token"] - event.first_token_at * 1e9) < 1e3
        assert {
            name: span.attributes[f"rootstock.billed.{name}_tokens"]
            for name in ("input", "cached", "output", "reasoning")
        } == {
            "input": event.usage.prompt_tokens,
            "cached": event.usage.cached_tokens,
            "output": event.usage.completion_tokens,
            "reasoning": 0,
        }
    (load,) = running.receiver.named("load adapter")
    (queue,) = [part for part in running.receiver.named("queue") if part.span_id == load.parent_id]
    assert queue.start_ns <= load.start_ns <= load.end_ns <= queue.end_ns
    assert load.attributes == {"rootstock.adapter.digest": ref(model).digest}
    assert load.resource["service.name"] == "rootstock-engine"
    assert load.resource["service.instance.id"] == "engine-0"
