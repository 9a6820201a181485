"""Spans of requests: their phases add up to what was measured, they bill what the ledger does, they follow
the client's trace, and they quote nobody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from api.app import create_app
from telemetry.sampling import NO_TRACE
from tests.api.conftest import World, build, serving, wait_until
from tests.api.fakes import KEY, Script, Step
from tests.support.spans import tracing_to
from tokenization.codec import TextCodec

ROOT = "POST /v1/chat/completions"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROMPT = "a prompt that nobody else may read"
ANSWER = "an answer"


@dataclass
class Traced:
    world: World
    client: httpx.AsyncClient
    exporter: InMemorySpanExporter

    def spans(self) -> list[ReadableSpan]:
        self.world.services.deferred_work.run()
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found

    async def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": PROMPT}]
        return await self.post("/v1/chat/completions", {"messages": messages} | fields, headers)

    async def post(
        self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None
    ) -> httpx.Response:
        answered = await self.client.post(path, json={"model": "sapling"} | fields, headers=headers)
        await asyncio.sleep(0)  # the reservation is settled behind the response
        return answered


@pytest.fixture
async def traced(codec: TextCodec) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    async with opened(build(codec, tracing=tracing_to(exporter)), exporter) as found:
        yield found


def opened(world: World, exporter: InMemorySpanExporter) -> Any:
    class Opened:
        async def __aenter__(self) -> Traced:
            world.engine.script = lambda submit: world.engine.says(submit, ANSWER)
            transport = httpx.ASGITransport(create_app(world.services), raise_app_exceptions=False)
            headers = {"authorization": f"Bearer {KEY}"}
            self.client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)
            return Traced(world, self.client, exporter)

        async def __aexit__(self, *_: object) -> None:
            await self.client.aclose()

    return Opened()


def children(spans: list[ReadableSpan], parent: ReadableSpan) -> list[ReadableSpan]:
    found = [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]
    return sorted(found, key=lambda span: span.start_time or 0)


async def test_phases_add_up_to_what_was_measured(traced: Traced) -> None:
    with structlog.testing.capture_logs() as lines:
        for number in range(20):
            answered = await traced.ask(stream=bool(number % 2))
            assert answered.status_code == 200
        spans = traced.spans()
    measured = {line["request_id"]: line["ms"] for line in lines if line["event"] == "request"}
    roots = [span for span in spans if span.name == ROOT]
    assert len(roots) == len(measured) == 20
    for root in roots:
        assert root.kind is SpanKind.SERVER
        parts = children(spans, root)
        assert [part.name for part in parts] == [
            "authenticate",
            "prepare",
            "reserve",
            "chat sapling",
            "respond",
        ]
        ends = [root.start_time, *(part.end_time for part in parts)]
        assert [part.start_time for part in parts] == ends[:-1], "a gap between phases"
        assert ends[-1] == root.end_time
        took = (root.end_time - root.start_time) / 1e6
        assert abs(took - measured[root.attributes["rootstock.request.id"]]) < 0.02, "milliseconds"
        assert root.attributes["http.route"] == "/v1/chat/completions"
        assert root.attributes["http.response.status_code"] == 200
        assert root.attributes["rootstock.tenant.id"] == "ten_one"


async def test_the_answers_span_has_the_standard_names_and_what_is_billed(traced: Traced) -> None:
    traced.world.engine.script = lambda submit: traced.world.engine.says(
        submit, ANSWER, cached_tokens=3, reasoning_tokens=1
    )
    answered = (await traced.ask(model="sapling:pirate", n=2, max_tokens=40, temperature=0.5)).json()
    span = traced.span("chat sapling:pirate@3")
    (billed,) = traced.world.engine.billed.values()
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rootstock",
        "gen_ai.request.model": "sapling:pirate",
        "gen_ai.response.model": "sapling:pirate@3",
        "gen_ai.response.id": answered["id"],
        "gen_ai.response.finish_reasons": ("stop", "stop"),
        "gen_ai.request.max_tokens": 40,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": False,
        "gen_ai.request.choice.count": 2,
        "gen_ai.usage.input_tokens": billed.prompt_tokens,
        "gen_ai.usage.output_tokens": billed.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert billed.completion_tokens == answered["usage"]["completion_tokens"]
    assert span.kind is SpanKind.CLIENT
    (first,) = span.events
    assert first.name == "first token"
    assert span.start_time <= first.timestamp <= span.end_time
    (submit,) = traced.world.engine.submitted
    assert submit.traceparent == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
    assert submit.model == "sapling:pirate"


async def test_several_prompts_are_one_answer(traced: Traced) -> None:
    answered = await traced.post("/v1/completions", {"prompt": ["one", "two words"]})
    assert answered.status_code == 200
    span = traced.span("text_completion sapling")
    usages = traced.world.engine.billed.values()
    assert span.attributes["gen_ai.usage.input_tokens"] == sum(usage.prompt_tokens for usage in usages)
    assert span.attributes["gen_ai.usage.output_tokens"] == sum(usage.completion_tokens for usage in usages)


async def test_responses_are_traced_alike(traced: Traced) -> None:
    answered = await traced.post("/v1/responses", {"input": PROMPT})
    assert answered.status_code == 200
    spans = traced.spans()
    (root,) = [span for span in spans if span.name == "POST /v1/responses"]
    names = [part.name for part in children(spans, root)]
    assert names == ["authenticate", "prepare", "reserve", "chat sapling", "respond"]


async def test_the_clients_trace_goes_on(traced: Traced) -> None:
    await traced.ask(headers={"traceparent": PARENT, "tracestate": "vendor=1"})
    root = traced.span(ROOT)
    assert f"{root.context.trace_id:032x}" == PARENT[3:35]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT[36:52]
    assert root.context.trace_state.to_header() == "vendor=1"


async def test_lines_of_a_request_have_its_ids(traced: Traced) -> None:
    with structlog.testing.capture_logs() as lines:
        await traced.ask(headers={"traceparent": PARENT})
        await traced.ask(headers={"traceparent": PARENT[:-1] + "0"})
        root = traced.span(ROOT)
    sampled, not_sampled = [line for line in lines if line["event"] == "request"]
    assert sampled["trace_id"] == PARENT[3:35]
    assert sampled["span_id"] == f"{root.context.span_id:016x}"
    assert "trace_id" not in not_sampled


async def test_what_is_not_sampled_costs_no_span(codec: TextCodec) -> None:
    exporter = InMemorySpanExporter()
    async with opened(build(codec, tracing=tracing_to(exporter, NO_TRACE)), exporter) as traced:
        assert (await traced.ask()).status_code == 200
        assert traced.spans() == []
        assert traced.world.engine.submitted[0].traceparent == ""


async def test_health_checks_are_not_traced(traced: Traced) -> None:
    await traced.client.get("/livez")
    await traced.client.get("/v1/models")
    assert [span.name for span in traced.spans()] == ["GET /v1/models"]


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (Script(reject=("overloaded", "full")), 503, "server_is_overloaded"),
        (Script(reject=("invalid", PROMPT)), 400, "invalid_value"),
        (Script([Step()], gone_after=0), 503, "engine_unavailable"),
    ],
)
async def test_failures_are_named_by_their_codes(
    traced: Traced, script: Script, status: int, code: str
) -> None:
    traced.world.engine.script = lambda submit: script
    answered = await traced.ask()
    assert answered.status_code == status
    span, root = traced.span("chat sapling"), traced.span(ROOT)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == answered.json()["error"]["code"] == code
    assert root.attributes["http.response.status_code"] == status
    assert (root.status.status_code is StatusCode.ERROR) is (status >= 500)


async def test_a_request_without_a_key_has_a_span_and_no_phases(traced: Traced) -> None:
    answered = await traced.ask(headers={"authorization": "Bearer sk-rs-not-a-key"})
    assert answered.status_code == 401
    (root,) = traced.spans()
    assert root.attributes["http.response.status_code"] == 401


async def test_no_span_has_a_text_or_a_secret(traced: Traced) -> None:
    await traced.ask(user="somebody", stop=["a stop text"], metadata={"note": "a note"})
    await traced.ask(messages=[{"role": "user", "content": [PROMPT, 1]}])
    await traced.ask(stream=True, tools=None, response_format=None)
    told = " ".join(span.to_json() for span in traced.spans())
    assert "chat sapling" in told
    for secret in (PROMPT, ANSWER, KEY, "somebody", "a stop text", "a note"):
        assert secret not in told


def test_a_client_that_leaves_is_billed_in_its_span(codec: TextCodec) -> None:
    exporter = InMemorySpanExporter()
    world = build(codec, tracing=tracing_to(exporter))
    world.engine.script = lambda submit: world.engine.says(submit, ANSWER * 100, delay=0.01)
    body = {"model": "sapling", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    with serving(world) as served, httpx.Client(headers={"authorization": f"Bearer {KEY}"}) as client:
        with client.stream("POST", f"{served.url}/v1/chat/completions", json=body) as stream:
            next(line for line in stream.iter_lines() if line.startswith("data:") and "content" in line)
        wait_until(
            lambda: (
                any(span.name == "chat sapling" for span in exporter.get_finished_spans())
                and world.engine.billed
            )
        )
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "chat sapling"]
    (billed,) = world.engine.billed.values()
    assert span.attributes["error.type"] == "client_disconnected"
    assert 0 < span.attributes["gen_ai.usage.output_tokens"] == billed.completion_tokens
    assert json.loads(span.to_json())["status"]["status_code"] == "ERROR"
