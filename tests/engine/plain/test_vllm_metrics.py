"""An engine's metrics under vLLM's names: adapters by the names that clients use, times of ended requests."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from engine.protocol import Submit
from engine.vllm_metrics import MAX_NAMES, AdapterNames, VllmMetrics
from tests.engine.plain.harness import Engine, adapter, submission


def scraped(metrics: VllmMetrics) -> dict[str, list[Sample]]:
    """The samples by their names, as a scrape has them."""
    registry = CollectorRegistry()
    registry.register(metrics)
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def named(request: Submit, model: str) -> Submit:
    return msgspec.structs.replace(request, model=model)


def test_before_the_engine_serves_there_are_no_gauges() -> None:
    assert "vllm:num_requests_running" not in scraped(VllmMetrics("base", "engine-0"))


def test_adapters_are_listed_by_name_and_by_whether_they_are_loaded() -> None:
    engine, metrics = Engine(num_slots=2, auto_load=False), VllmMetrics("base", "engine-0", lambda: 7.0)
    loaded, loading, missing = adapter("loaded"), adapter("loading"), adapter("missing")
    for number, (ref, model) in enumerate(
        ((loaded, "base:a"), (loaded, "base:a@1"), (loading, "base:b"), (missing, "base:c"), (None, "base"))
    ):
        request = named(submission(f"r{number}", [1, 2, 3], adapter=ref), model)
        metrics.received(request)
        engine.submit(request)
    engine.finish_load()
    engine.step()
    metrics.measured(engine.core.stats, engine.core)
    found = scraped(metrics)
    (info,) = found["vllm:lora_requests_info"]
    assert set(info.labels["running_lora_adapters"].split(",")) == {"base:a", "base:a@1"}
    assert info.labels["waiting_lora_adapters"] == "base:b,base:c"
    assert info.labels["max_lora"] == "3", "two slots, and a second name in one of them"
    assert info.value == 7.0
    (running,) = found["vllm:num_requests_running"]
    assert (running.labels, running.value) == ({"model_name": "base", "engine": "engine-0"}, 3.0)
    assert found["vllm:num_requests_waiting"][0].value == 2.0
    usage = found["vllm:kv_cache_usage_perc"][0].value
    assert 0 < usage == engine.core.stats.blocks_used / engine.core.stats.blocks_total


def test_drafts_are_counted_in_all_and_by_loaded_adapter_and_by_tenant_for_pages() -> None:
    engine, metrics = Engine(num_slots=2), VllmMetrics("base", "engine-0")
    loaded, gone = adapter("loaded"), adapter("gone")
    engine.submit(submission("one", [1, 2, 3], 5, adapter=loaded))
    engine.step()
    counters = engine.core.scheduler.counters
    for tenant, digest, drafted, accepted in (
        ("acme", loaded.digest, 4, 3),
        ("acme", loaded.digest, 4, 1),
        ("bolt", loaded.digest, 8, 8),
        ("bolt", gone.digest, 2, 2),
        ("bolt", None, 1, 0),
    ):
        counters.count_draft_step(tenant, digest)
        counters.count_drafts(tenant, digest, "text", drafted, accepted)
    metrics.measured(engine.core.stats, engine.core)
    found = scraped(metrics)
    everything = [
        found[f"vllm:spec_decode_num_{name}_total"][0].value
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    assert everything == [5, 19, 14]
    of_adapter = [
        (sample.labels["adapter"], sample.value)
        for name in ("draft_steps", "drafted_tokens", "accepted_tokens")
        for sample in found[f"rootstock_adapter_{name}_total"]
    ]
    assert of_adapter == [(loaded.digest, 3), (loaded.digest, 16), (loaded.digest, 12)]
    view = engine.core.view(engine.core.stats)
    assert {(one.tenant, one.digest): one.steps for one in view.drafts} == {
        ("acme", loaded.digest): 2,
        ("bolt", loaded.digest): 1,
        ("bolt", gone.digest): 1,
    }


def test_names_are_bounded_and_the_latest_stay() -> None:
    names = AdapterNames()
    for number in range(MAX_NAMES + 3):
        names.note("digest", f"base:a@{number}")
    assert names.of(["digest"]) == [f"base:a@{number}" for number in range(3, MAX_NAMES + 3)]
    assert names.of(["unknown"]) == []


def test_times_of_ended_requests_are_those_of_their_usage_events() -> None:
    engine, metrics = Engine(), VllmMetrics("base", "engine-0")
    engine.submit(submission("one", [1, 2, 3], 5, n=2))
    engine.submit(submission("none", [1, 2, 3], 5))
    engine.core.abort("none")
    events = []
    while engine.core.has_work:
        events += [event for _, event in engine.step().finished]
        engine.now += 0.25
    for event in events:
        metrics.ended(msgspec.structs.replace(event, submitted_at=4999.0))
    found = scraped(metrics)

    def total(name: str) -> tuple[float, float]:
        return found[f"vllm:{name}_count"][0].value, found[f"vllm:{name}_sum"][0].value

    (one,) = [event for event in events if event.request_id == "one"]
    assert one.scheduled_at is not None
    assert one.first_token_at is not None
    assert one.finished_at is not None
    assert total("time_to_first_token_seconds") == (1, one.first_token_at - 4999.0)
    assert total("request_decode_time_seconds") == (1, one.finished_at - one.first_token_at)
    assert total("e2e_request_latency_seconds")[0] == 2
    count, seconds = total("inter_token_latency_seconds")
    assert count == 8, "four gaps in each of two choices"
    assert abs(seconds / count - (one.finished_at - one.first_token_at) / 4) < 1e-9
    ended = {sample.labels["finished_reason"]: sample.value for sample in found["vllm:request_success_total"]}
    assert ended == {"stop": 0, "length": 1, "abort": 1, "error": 0}
