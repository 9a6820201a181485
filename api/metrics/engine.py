"""Maps the engines' latest statistics to Prometheus metrics, at each scrape of /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from engine.client import EngineClient
from engine.protocol import EngineStats

_Names = Mapping[str, tuple[str, str]]
"""By field of EngineStats, the metric's name and help."""
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
    "prefill_sources": ("prefill_sources", "Engines that would compute prompts for this one now."),
    "prompts_fetching": ("prompts_fetching", "Requests whose prompts are being computed on another engine."),
    "adapters_fetching": (
        "adapters_fetching",
        "Packed adapters on their way from the object store to the engine's host.",
    ),
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
    "adapter_fetches": ("adapter_fetches", "Packed adapters fetched from the object store."),
    "adapter_fetch_bytes": ("adapter_fetch_bytes", "Bytes of fetched adapters."),
    "adapter_fetch_seconds": (
        "adapter_fetch_seconds",
        "From the start of a fetch to its end, summed over those that succeeded.",
    ),
    "adapters_verified": ("adapters_verified", "Loads of adapters whose signature was verified."),
    "adapters_unsigned": ("adapters_unsigned", "Loads of adapters without a signature."),
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
    "prompts_fetched": ("prompts_fetched", "Prompts that were computed on another engine as a whole."),
    "fetched_tokens": (
        "prompt_tokens_fetched",
        "Prompt tokens whose keys and values came from another engine.",
    ),
    "prompts_exported": ("prompts_exported", "Prompts computed for other engines."),
    "exported_tokens": (
        "prompt_tokens_exported",
        "Prompt tokens whose keys and values went to other engines.",
    ),
    "drafted_tokens": ("engine_drafted_tokens", "Guessed tokens that steps verified."),
    "accepted_tokens": ("engine_accepted_tokens", "Guessed tokens that were drawn too, and given out."),
    "placeholder_tokens": (
        "engine_placeholder_tokens",
        "Tokens computed for draft adapters to guess in their places.",
    ),
    "draft_steps": ("engine_draft_steps", "Rows of steps that verified guessed tokens."),
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
_COUNTERS_BY_CAUSE = {
    "fetch_fallbacks": (
        "prompt_fallbacks",
        "Long prompts that were computed on the engine of their request, or their rest, and why.",
    ),
    "adapter_fetch_failures": (
        "adapter_fetch_failures",
        "Packed adapters that could not be fetched from the object store, and why.",
    ),
    "adapter_refusals": (
        "adapter_refusals",
        "Adapters not loaded because they are not what was signed, or not signed, and why.",
    ),
}


_COUNTERS_BY_KIND = {
    "drafted_by_kind": (
        "engine_drafted_tokens_by_kind",
        "Guessed tokens that steps verified: forced by a grammar, seen in texts, or from a draft adapter.",
    ),
    "accepted_by_kind": (
        "engine_accepted_tokens_by_kind",
        "Guessed tokens that were drawn too, and given out, by where they came from.",
    ),
}


_RATIOS = (
    ("kv_occupancy_ratio", "Share of the KV blocks held by running requests.", "blocks_used", "blocks_total"),
    (
        "adapter_slot_residency_ratio",
        "Share of the adapter slots that hold a loaded adapter.",
        "slots_resident",
        "slots_total",
    ),
    (
        "prefix_hit_ratio",
        "Share of all prompt tokens so far that came from the prefix cache.",
        "cached_tokens",
        "prompt_tokens",
    ),
)
"""Name, help, and the fields of EngineStats that are divided."""


class EngineCollector(Collector):
    """Mirrors the engines, each with its name as the label `replica`. Without a heartbeat yet, only
    `rootstock_engine_up` is shown of an engine.
    """

    def __init__(self, engines: Callable[[], Sequence[EngineClient]]) -> None:
        self._engines = engines

    def describe(self) -> list[Metric]:
        """Returns nothing: at registration the engines may not have answered yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        engines = self._engines()
        up = GaugeMetricFamily(
            "rootstock_engine_up", "1 while the engine is connected and serving.", labels=["replica"]
        )
        serving: dict[str, bool] = {}
        for position, engine in enumerate(engines):
            name = f"unknown-{position}" if engine.info is None else engine.info.engine_id
            serving[name] = serving.get(name, False) or engine.ready  # two may have one id by mistake
        for name, is_serving in serving.items():
            up.add_metric([name], float(is_serving))
        yield up
        # Read once: a family's samples are then of the same engines.
        latest = {stats.engine_id: stats for engine in engines if (stats := engine.stats) is not None}
        if latest:
            bases = {one.info.engine_id: one.info.base for one in engines if one.info is not None}
            yield from _of_engines(latest)
            yield _about(latest, bases)
            yield from _by_class(latest)
            yield _queue_wait(latest)
            yield from _by_label(latest, _COUNTERS_BY_CAUSE, "cause")
            yield from _by_label(latest, _COUNTERS_BY_KIND, "kind")
            yield from _ratios(latest)


def _of_engines(latest: Mapping[str, EngineStats]) -> Iterator[Metric]:
    families: tuple[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], _Names], ...] = (
        (GaugeMetricFamily, _GAUGES),
        (CounterMetricFamily, _COUNTERS),
    )
    for kind, names in families:
        for field, (name, text) in names.items():
            family = kind(f"rootstock_{name}", text, labels=["replica"])
            for replica, stats in latest.items():
                family.add_metric([replica], float(getattr(stats, field)))
            yield family


def _about(latest: Mapping[str, EngineStats], bases: Mapping[str, str]) -> Metric:
    about = InfoMetricFamily(
        "rootstock_engine", "What the engine runs on and how it holds its numbers.", labels=["replica"]
    )
    for replica, stats in latest.items():
        facts = {"device": stats.device, "quantization": stats.quantization, "kv_dtype": stats.kv_dtype}
        facts["base"] = bases.get(replica, "")
        about.add_metric([replica], facts)
    return about


def _by_class(latest: Mapping[str, EngineStats]) -> Iterator[Metric]:
    families: tuple[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], _Names], ...] = (
        (GaugeMetricFamily, _GAUGES_BY_CLASS),
        (CounterMetricFamily, _COUNTERS_BY_CLASS),
    )
    for kind, names in families:
        for field, (name, text) in names.items():
            family = kind(f"rootstock_{name}", text, labels=["service_tier", "replica"])
            for replica, stats in latest.items():
                for tier, value in getattr(stats, field).items():
                    family.add_metric([tier, replica], value)
            yield family


def _queue_wait(latest: Mapping[str, EngineStats]) -> Metric:
    wait = SummaryMetricFamily(
        "rootstock_queue_wait_seconds",
        "From submission to first admission to a batch.",
        labels=["service_tier", "replica"],
    )
    for replica, stats in latest.items():
        for tier, count in stats.admitted.items():
            seconds = stats.queue_seconds.get(tier, 0.0)
            wait.add_metric([tier, replica], count_value=count, sum_value=seconds)
    return wait


def _by_label(latest: Mapping[str, EngineStats], names: _Names, label: str) -> Iterator[Metric]:
    for field, (name, text) in names.items():
        family = CounterMetricFamily(f"rootstock_{name}", text, labels=[label, "replica"])
        for replica, stats in latest.items():
            for cause, count in getattr(stats, field).items():
                family.add_metric([cause, replica], count)
        yield family


def _ratios(latest: Mapping[str, EngineStats]) -> Iterator[Metric]:
    for name, text, used, total in _RATIOS:
        family = GaugeMetricFamily(f"rootstock_{name}", text, labels=["replica"])
        for replica, stats in latest.items():
            whole = getattr(stats, total)
            family.add_metric([replica], getattr(stats, used) / whole if whole else 0.0)
        yield family
