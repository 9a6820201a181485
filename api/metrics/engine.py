"""Maps the engine's latest statistics to Prometheus metrics, at each scrape of /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from engine.protocol import EngineStats

_GAUGES = {
    "running": ("requests_running", "Requests in the running batch."),
    "rows_total": ("batch_rows", "Requests that a batch has room for."),
    "blocks_total": ("kv_blocks", "KV blocks of the engine."),
    "blocks_used": ("kv_blocks_used", "KV blocks held by running requests."),
    "slots_total": ("adapter_slots", "Adapter slots of the engine."),
    "slots_resident": ("adapter_slots_resident", "Adapter slots that hold a loaded adapter."),
    "slots_loading": ("adapter_slots_loading", "Adapter slots being filled."),
    "adapter_bytes_total": (
        "adapter_memory_bytes",
        "Device memory set aside for adapters.",
    ),
    "adapter_bytes_used": ("adapter_memory_used_bytes", "Of that memory, what resident adapters take."),
    "memory_bandwidth": (
        "engine_memory_bandwidth_bytes",
        "Bytes per second that the device's memory copies, as set or measured; 0: not known.",
    ),
    "draining": ("engine_draining", "1 while the engine refuses new requests and ends with those it has."),
    "started_at": ("engine_start_time_seconds", "When the engine started, in Unix seconds."),
    "journal_spooled": ("usage_events_spooled", "Usage events on the engine's disk, waiting for Redis."),
    "journal_set_aside": (
        "usage_files_set_aside",
        "Damaged files of the engine's usage journal that wait for `rootstock billing import-spool`.",
    ),
}
_COUNTERS = {
    "adapter_loads": ("adapter_loads", "Adapters loaded into a slot."),
    "adapter_evictions": ("adapter_evictions", "Adapters that made room for another."),
    "adapter_load_seconds": (
        "adapter_load_seconds",
        "From the start of a load to its end, summed.",
    ),
    "steps": ("engine_steps", "Steps of the engine."),
    "step_seconds": ("engine_step_seconds", "Time spent in steps."),
    "step_gap_seconds": ("engine_step_gap_seconds", "Time the device waited although requests were running."),
    "step_bytes": (
        "engine_step_bytes",
        "Bytes that steps had to read at least: weights, keys and values, adapters.",
    ),
    "graph_replays": ("engine_graph_replays", "Steps that replayed a captured graph."),
    "eager_steps": ("engine_eager_steps", "Steps launched op by op."),
    "prompt_tokens": ("engine_prompt_tokens", "Prompt tokens of admitted requests."),
    "cached_tokens": ("engine_cached_tokens", "Prompt tokens that came from the prefix cache."),
    "completion_tokens": ("engine_completion_tokens", "Tokens generated."),
    "prefill_tokens": ("engine_prefill_tokens", "Known tokens computed: of prompts, and again if preempted."),
    "decode_tokens": ("engine_decode_tokens", "Tokens computed one to a row, to draw the next."),
    "preemptions": ("preemptions", "Requests taken out of the batch to make room, and run again later."),
    "aborted": ("engine_aborted", "Requests stopped before their end, mostly by clients that left."),
    "rejected": ("engine_rejected", "Requests the engine would not run."),
    "errors": ("engine_errors", "Requests that failed inside the engine."),
}
_GAUGES_BY_CLASS = {
    "waiting": ("requests_waiting", "Requests in the engine's queue."),
    "running_by_class": ("requests_running_by_class", "Requests in the running batch."),
    "predicted_wait": ("predicted_wait_seconds", "What a short request that came now would wait."),
}
_COUNTERS_BY_CLASS = {
    "preempted": ("preempted", "Requests taken out of the batch to make room."),
    "shed": ("shed", "Requests refused because they would have waited too long."),
}


class EngineCollector(Collector):
    """Mirrors one engine. Without a heartbeat yet, only `rootstock_engine_up` is shown.

    Args:
        stats: the latest statistics, or None.
        ready: whether the engine answers now.
    """

    def __init__(self, stats: Callable[[], EngineStats | None], ready: Callable[[], bool]) -> None:
        self._stats = stats
        self._ready = ready

    def describe(self) -> list[Metric]:
        """Returns nothing: at registration the engine may not have answered yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "rootstock_engine_up", "1 while the engine is connected and serving.", float(self._ready())
        )
        stats = self._stats()
        if stats is None:
            return
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"rootstock_{name}", text, float(getattr(stats, field)))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"rootstock_{name}", text, float(getattr(stats, field)))
        yield InfoMetricFamily(
            "rootstock_engine",
            "What the engine runs on and how it holds its numbers.",
            {"device": stats.device, "quantization": stats.quantization, "kv_dtype": stats.kv_dtype},
        )
        for kind, by_class in (
            (GaugeMetricFamily, _GAUGES_BY_CLASS),
            (CounterMetricFamily, _COUNTERS_BY_CLASS),
        ):
            for field, (name, text) in by_class.items():
                family = kind(f"rootstock_{name}", text, labels=["service_tier"])
                for tier, value in getattr(stats, field).items():
                    family.add_metric([tier], value)
                yield family
        wait = SummaryMetricFamily(
            "rootstock_queue_wait_seconds",
            "From submission to first admission to a batch.",
            labels=["service_tier"],
        )
        for tier, count in stats.admitted.items():
            wait.add_metric([tier], count_value=count, sum_value=stats.queue_seconds.get(tier, 0.0))
        yield wait
        yield GaugeMetricFamily(
            "rootstock_kv_occupancy_ratio",
            "Share of the KV blocks held by running requests.",
            stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0,
        )
        yield GaugeMetricFamily(
            "rootstock_adapter_slot_residency_ratio",
            "Share of the adapter slots that hold a loaded adapter.",
            stats.slots_resident / stats.slots_total if stats.slots_total else 0.0,
        )
        yield GaugeMetricFamily(
            "rootstock_prefix_hit_ratio",
            "Share of all prompt tokens so far that came from the prefix cache.",
            stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0,
        )
