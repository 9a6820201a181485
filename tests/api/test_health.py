"""Probes and metrics."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api import health
from api.app import create_app
from api.metrics.engine import EngineCollector
from api.metrics.routing import RoutingCollector
from engine.protocol import EngineStats
from routing.replica_set import RoutingCounts
from tests.api.conftest import World
from tests.api.fakes import KEY, RESTRICTED_KEY, Script

STATS = EngineStats(
    engine_id="engine-0",
    incarnation="i1",
    running=3,
    waiting={"default": 2, "flex": 5},
    blocks_total=100,
    blocks_used=25,
    slots_total=8,
    slots_resident=6,
    preemptions=4,
    device="cuda:0",
    quantization="fp8",
    kv_dtype="bfloat16",
    adapter_bytes_total=1000,
    adapter_bytes_used=400,
    adapter_load_seconds=0.5,
    graph_replays=90,
    eager_steps=10,
    step_gap_seconds=0.25,
    drafted_tokens=120,
    drafted_by_kind={"text": 70, "adapter": 50},
    accepted_by_kind={"text": 60, "adapter": 30},
    placeholder_tokens=80,
    accepted_tokens=90,
    draft_steps=60,
    adapter_fetches=6,
    adapter_fetch_failures={"missing": 2},
    adapters_verified=5,
    adapters_unsigned=1,
    adapter_refusals={"signature": 3},
    step_bytes=7_000_000_000,
    memory_bandwidth=4.0e12,
    prompt_tokens=1000,
    cached_tokens=250,
    admitted={"default": 10},
    queue_seconds={"default": 1.5},
)


async def metrics_of(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    return {
        sample.name + "".join(f"|{value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_livez_needs_nothing(client: httpx.AsyncClient, world: World) -> None:
    world.engine.ready = False
    response = await client.get("/livez", headers={"authorization": ""})
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_readyz_names_what_is_not_ready(world: World, monkeypatch: object) -> None:
    async def fine() -> None:
        pass

    async def broken() -> None:
        raise ConnectionError("redis://user:password@host is away")

    async def short() -> str:
        return "99 MB free, 512 MB required"

    async def stuck() -> None:
        await asyncio.sleep(60)

    async def ask(**checks: object) -> httpx.Response:
        app = create_app(replace(world.services, checks=checks, metrics=type(world.services.metrics)()))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get("/readyz")

    ready = await ask(postgres=fine, redis=fine)
    assert ready.status_code == 200
    assert ready.json()["checks"] == {"engine": "ok", "postgres": "ok", "redis": "ok"}
    monkeypatch.setattr(health, "CHECK_TIMEOUT", 0.05)
    world.engine.ready = False
    response = await ask(postgres=stuck, redis=broken, schema=fine, disk=short)
    assert response.status_code == 503
    assert response.json()["not_ready"] == ["engine", "postgres", "redis", "disk"]
    assert response.json()["checks"]["disk"] == "99 MB free, 512 MB required"
    assert response.json()["checks"]["redis"] == "ConnectionError"
    assert "password" not in response.text


async def test_a_first_token_that_was_held_back_counts_from_when_it_was_drawn(
    client: httpx.AsyncClient, world: World
) -> None:
    engine = world.engine
    engine.script = lambda submit: engine.says(submit, "one two", delay=0.06, per_step=10, held_for=0.04)
    body = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}]}
    began = time.perf_counter()
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    took = time.perf_counter() - began
    seen = await metrics_of(client)
    first = seen["rootstock_time_to_first_token_seconds_sum|default"]
    assert 0.01 < first < took - 0.04
    assert seen["rootstock_time_per_output_token_seconds_sum|default"] > 0.01  # of some three after the first


async def test_what_the_engine_refuses_has_no_first_token(client: httpx.AsyncClient, world: World) -> None:
    world.engine.script = lambda submit: Script(reject=("overloaded", "full", 1.0))
    body = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}]}
    for stream in (False, True):
        answer = await client.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.status_code == 503
    seen = await metrics_of(client)
    assert seen.get("rootstock_time_to_first_token_seconds_count|default", 0) == 0


async def test_serving_is_measured(client: httpx.AsyncClient, world: World) -> None:
    engine = world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", delay=0.003, cached_tokens=2)
    body = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}], "service_tier": "flex"}
    began = time.perf_counter()
    answer = (await client.post("/v1/chat/completions", json=body)).json()
    await client.post("/v1/chat/completions", json={**body, "stream": True})
    took = time.perf_counter() - began
    await client.post("/v1/chat/completions", json={**body, "n": 0})
    await client.get("/v1/secret-path")
    seen = await metrics_of(client)
    assert seen["rootstock_tokens_total|prompt|flex"] == 2 * answer["usage"]["prompt_tokens"]
    assert seen["rootstock_tokens_total|completion|flex"] == 2 * answer["usage"]["completion_tokens"]
    assert seen["rootstock_tokens_total|cached|flex"] == 4
    assert seen["rootstock_time_to_first_token_seconds_count|flex"] == 2
    # Timers of uvloop count milliseconds and may be early by one.
    assert 0.002 <= seen["rootstock_time_to_first_token_seconds_sum|flex"] / 2 < took / 2
    assert 0.001 < seen["rootstock_time_per_output_token_seconds_sum|flex"] / 2 < took / 2
    assert seen["rootstock_request_duration_seconds_count|flex"] == 2
    assert seen["rootstock_errors_total|invalid_value"] == 1
    assert seen["rootstock_http_requests_total|POST|/v1/chat/completions|200"] == 2
    assert seen["rootstock_http_requests_total|POST|/v1/chat/completions|400"] == 1
    assert seen["rootstock_http_requests_total|GET|unmatched|404"] == 1
    assert seen["rootstock_open_streams"] == 0
    assert seen["rootstock_engine_up|engine-0"] == 1


async def test_the_engine_is_mirrored(client: httpx.AsyncClient, world: World) -> None:
    assert "rootstock_requests_running" not in await metrics_of(client)
    world.engine.stats = STATS
    seen = await metrics_of(client)
    assert seen["rootstock_requests_running|engine-0"] == 3
    assert seen["rootstock_requests_waiting|engine-0|flex"] == 5
    assert seen["rootstock_kv_occupancy_ratio|engine-0"] == 0.25
    assert seen["rootstock_adapter_slot_residency_ratio|engine-0"] == 0.75
    assert seen["rootstock_prefix_hit_ratio|engine-0"] == 0.25
    assert seen["rootstock_preemptions_total|engine-0"] == 4
    assert seen["rootstock_queue_wait_seconds_count|engine-0|default"] == 10
    assert seen["rootstock_queue_wait_seconds_sum|engine-0|default"] == 1.5
    assert seen["rootstock_engine_info|sapling|cuda:0|bfloat16|fp8|engine-0"] == 1
    assert seen["rootstock_adapter_memory_bytes|engine-0"] == 1000
    assert seen["rootstock_adapter_memory_used_bytes|engine-0"] == 400
    assert seen["rootstock_adapter_load_seconds_total|engine-0"] == 0.5
    assert seen["rootstock_engine_graph_replays_total|engine-0"] == 90
    assert seen["rootstock_engine_eager_steps_total|engine-0"] == 10
    assert seen["rootstock_engine_step_gap_seconds_total|engine-0"] == 0.25
    assert seen["rootstock_engine_drafted_tokens_total|engine-0"] == 120
    assert seen["rootstock_engine_accepted_tokens_total|engine-0"] == 90
    assert seen["rootstock_engine_drafted_tokens_by_kind_total|adapter|engine-0"] == 50
    assert seen["rootstock_engine_accepted_tokens_by_kind_total|text|engine-0"] == 60
    assert seen["rootstock_engine_placeholder_tokens_total|engine-0"] == 80
    assert seen["rootstock_engine_draft_steps_total|engine-0"] == 60
    assert seen["rootstock_engine_step_bytes_total|engine-0"] == 7_000_000_000
    assert seen["rootstock_engine_memory_bandwidth_bytes|engine-0"] == 4.0e12
    assert seen["rootstock_adapter_fetches_total|engine-0"] == 6
    assert seen["rootstock_adapter_fetch_failures_total|missing|engine-0"] == 2
    assert seen["rootstock_adapters_verified_total|engine-0"] == 5
    assert seen["rootstock_adapters_unsigned_total|engine-0"] == 1
    assert seen["rootstock_adapter_refusals_total|signature|engine-0"] == 3
    world.engine.ready = False
    assert (await metrics_of(client))["rootstock_engine_up|engine-0"] == 0


async def test_every_replica_and_what_was_routed_to_it_is_shown(world: World) -> None:
    def engine(number: int, stats: EngineStats | None) -> Any:
        info = msgspec.structs.replace(world.engine.info, engine_id=f"engine-{number}")
        return SimpleNamespace(info=info, stats=stats, ready=stats is not None)

    registry = CollectorRegistry()
    second = msgspec.structs.replace(STATS, engine_id="engine-1", running=7)
    unknown = SimpleNamespace(info=None, stats=None, ready=False)
    namesake = engine(0, None)
    engines: Any = [engine(0, STATS), engine(1, second), engine(2, None), unknown, namesake]
    registry.register(EngineCollector(lambda: engines))
    counts = RoutingCounts({("engine-0", "adapter"): 5, ("engine-1", "spill"): 2}, rerouted=3)
    pool: Any = SimpleNamespace(counts=counts, takes_requests=lambda: {"engine-0": True, "engine-1": False})
    other: Any = SimpleNamespace(counts=RoutingCounts(), takes_requests=lambda: {"engine-0": False})
    registry.register(RoutingCollector([pool, other]))
    shown = generate_latest(registry).decode()
    for line in (
        'rootstock_engine_up{replica="engine-0"} 1.0',
        'rootstock_engine_up{replica="engine-2"} 0.0',
        'rootstock_engine_up{replica="unknown-3"} 0.0',
        'rootstock_requests_running{replica="engine-0"} 3.0',
        'rootstock_requests_running{replica="engine-1"} 7.0',
        'rootstock_engine_takes_requests{replica="engine-0"} 1.0',
        'rootstock_engine_takes_requests{replica="engine-1"} 0.0',
        'rootstock_routed_total{reason="adapter",replica="engine-0"} 5.0',
        'rootstock_routed_total{reason="spill",replica="engine-1"} 2.0',
        "rootstock_rerouted_total 3.0",
    ):
        assert shown.splitlines().count(line) == 1
    for name in ("rootstock_engine_up", "rootstock_engine_takes_requests"):
        assert shown.count(f'{name}{{replica="engine-0"}}') == 1, "Prometheus refuses a series twice"


async def test_no_label_names_a_key_a_tenant_or_an_adapter(client: httpx.AsyncClient, world: World) -> None:
    world.engine.stats = STATS
    body = {"model": "sapling:pirate", "messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    await client.get("/v1/models/sapling:pirate@3")
    text = (await client.get("/metrics")).text
    for name in (KEY, RESTRICTED_KEY, "key_one", "ten_one", "pirate", "adp_1", "a" * 10):
        assert name not in text
    labels = set(re.findall(r'(\w+)="', "\n".join(line for line in text.split("\n") if "rootstock_" in line)))
    device = {"base", "device", "quantization", "kv_dtype", "replica", "reason", "cause"}
    assert (
        labels
        <= {"service_tier", "outcome", "kind", "code", "result", "method", "route", "status", "le"} | device
    )
