"""Exposes an engine's state as Prometheus metrics under vLLM's names, for dashboards and endpoint pickers
that know only these.

`vllm:lora_requests_info` follows the model server protocol of the Gateway API inference extension: adapters
in memory in one label and awaited ones in another, separated by commas, with the time as the value.

vLLM has no names for drafts by adapter: those counters are `rootstock_adapter_...`, of the adapters in
memory, all tenants together.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.core import EngineCore
from engine.gauges import MAX_RESIDENT, EngineStats
from engine.inspection import drafts_by_digest
from engine.lora.slots import SlotState
from engine.observation import NoObserver
from engine.outputs import DraftCounter
from engine.protocol import Submit, UsageEvent

MAX_NAMED_ADAPTERS = 8192
MAX_NAMES = 4
"""Names of one adapter: its clients may call it by its version, its id, or neither."""
_LABELS = ["model_name", "engine"]
_LATENCY = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
)
_TOKEN_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class AdapterNames:
    """The names that clients have called adapters by lately, by digest."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def note(self, digest: str, name: str) -> None:
        names = self._names.setdefault(digest, OrderedDict())
        names[name] = None
        names.move_to_end(name)
        if len(names) > MAX_NAMES:
            names.popitem(last=False)
        self._names.move_to_end(digest)
        if len(self._names) > MAX_NAMED_ADAPTERS:
            self._names.popitem(last=False)

    def of(self, digests: Iterable[str]) -> list[str]:
        """Returns the names of these adapters, each once."""
        return list(dict.fromkeys(name for digest in digests for name in self._names.get(digest, ())))


class _Histogram:
    """Counts values by bucket. Not thread-safe."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        value = max(0.0, value)  # the clocks of two machines
        self._counts[bisect_left(self._buckets, value)] += times
        self._sum += value * times

    def family(self, labels: Sequence[str]) -> Metric:
        found = HistogramMetricFamily(f"vllm:{self._name}", self._text, labels=_LABELS)
        total, cumulative = 0, []
        for bound, count in zip((*self._buckets, float("inf")), self._counts, strict=True):
            total += count
            cumulative.append((floatToGoString(bound), float(total)))
        found.add_metric(labels, cumulative, self._sum)
        return found


class VllmMetrics(NoObserver, Collector):
    """One engine's metrics: gauges as of their last reading, histograms of the requests that have ended."""

    def __init__(self, model_name: str, engine_id: str, clock: Callable[[], float] = time.time) -> None:
        """`model_name`: the base's, in the label that vLLM's dashboards filter by."""
        self._labels = (model_name, engine_id)
        self._clock = clock
        self._names = AdapterNames()
        self._stats: EngineStats | None = None
        self._block_size = 0
        self._loaded: list[str] = []
        self._awaited: list[str] = []
        self._drafts: dict[str, DraftCounter] = {}
        """By digest, of the adapters in memory that had drafts."""
        self._max_lora = 0
        self._measured_at = 0.0
        self._lock = Lock()
        """Around the histograms and `_reasons`: requests end on the journal's thread."""
        self._reasons: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        seconds = _latency
        self._first_token = _Histogram("time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN)
        self._gap = _Histogram(
            "inter_token_latency_seconds",
            "Time between output tokens; those of a request count at their mean.",
            _TOKEN_GAP,
        )
        self._per_token = _Histogram(
            "request_time_per_output_token_seconds", "Mean time per output token of a request.", _TOKEN_GAP
        )
        self._whole = seconds("e2e_request_latency_seconds", "From submission to the last token.")
        self._queue = seconds("request_queue_time_seconds", "From submission to the first admission.")
        self._inference = seconds("request_inference_time_seconds", "From admission to the last token.")
        self._prefill = seconds("request_prefill_time_seconds", "From admission to the first token.")
        self._decode = seconds("request_decode_time_seconds", "From the first token to the last.")
        self._prompt = _Histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._generated = _Histogram("request_generation_tokens", "Tokens generated for a request.", _TOKENS)
        self._histograms = [value for value in vars(self).values() if isinstance(value, _Histogram)]

    # What the engine reports --------------------------------------------------------------------------------

    def received(self, request: Submit) -> None:
        if request.adapter is not None:
            self._names.note(request.adapter.digest, request.model or request.labels.get("model", ""))

    def measured(self, stats: EngineStats, core: EngineCore) -> None:
        allocator = core.scheduler.slot_allocator
        held = [slot for slot in allocator.slots.slots if slot.ref is not None]
        held.sort(key=lambda slot: not slot.references)
        loaded = [slot.ref.digest for slot in held if slot.ref and slot.state is SlotState.READY]
        loading = [slot.ref.digest for slot in held if slot.ref and slot.state is SlotState.LOADING]
        awaited = [*loading, *allocator.missing][:MAX_RESIDENT]
        self._loaded, self._awaited = self._names.of(loaded[:MAX_RESIDENT]), self._names.of(awaited)
        # A picker takes each name for a slot, and an adapter can have several.
        num_named = sum(bool(self._names.of([digest])) for digest in (*loaded[:MAX_RESIDENT], *awaited))
        self._max_lora = stats.slots_total + len(self._loaded) + len(self._awaited) - num_named
        self._block_size = core.scheduler.pool.block_size
        drafts = drafts_by_digest(core.scheduler)
        self._drafts = {digest: drafts[digest] for digest in loaded if digest in drafts}
        self._stats, self._measured_at = stats, self._clock()

    def ended(self, event: UsageEvent) -> None:
        if event.finished_at is None:
            return
        with self._lock:
            for reason in (event.finish_reason or "abort").split(","):
                self._reasons[reason] = self._reasons.get(reason, 0) + 1
            self._observe(event, event.finished_at)

    def _observe(self, event: UsageEvent, finished_at: float) -> None:
        usage, scheduled, first = event.usage, event.scheduled_at, event.first_token_at
        self._whole.observe(finished_at - event.submitted_at)
        self._queue.observe((finished_at if scheduled is None else scheduled) - event.submitted_at)
        if scheduled is None:
            return
        self._prompt.observe(usage.prompt_tokens)
        self._generated.observe(usage.completion_tokens)
        self._inference.observe(finished_at - scheduled)
        if first is None:
            return
        self._first_token.observe(first - event.submitted_at)
        self._prefill.observe(first - scheduled)
        self._decode.observe(finished_at - first)
        num_gaps = usage.completion_tokens // event.n - 1
        if num_gaps > 0:
            gap = (finished_at - first) / num_gaps
            self._per_token.observe(gap)
            self._gap.observe(gap, num_gaps * event.n)

    # What is scraped ----------------------------------------------------------------------------------------

    def describe(self) -> list[Metric]:
        """Returns nothing: there are no gauges before the engine serves."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        if stats is not None:
            yield from self._gauges(stats)
            yield from self._counters(stats)
            yield from self._counters_by_adapter()
        with self._lock:
            families = [histogram.family(self._labels) for histogram in self._histograms]
            reasons = dict(self._reasons)
        yield from families
        ended = CounterMetricFamily(
            "vllm:request_success", "Choices by why they ended.", labels=[*_LABELS, "finished_reason"]
        )
        for reason, count in reasons.items():
            ended.add_metric([*self._labels, reason], count)
        yield ended

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
        for name, text, value in (
            ("num_requests_running", "Requests in the batch.", float(stats.running)),
            ("num_requests_waiting", "Requests in the queue.", float(sum(stats.waiting.values()))),
            ("kv_cache_usage_perc", "Share of the KV blocks that are in use; 1 is all.", used),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        cache = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Size of the KV cache.",
            labels=["block_size", "num_gpu_blocks", "engine"],
        )
        cache.add_metric([str(self._block_size), str(stats.blocks_total), self._labels[1]], 1.0)
        yield cache
        if stats.slots_total:
            adapters = GaugeMetricFamily(
                "vllm:lora_requests_info",
                "Adapters in memory (running) and awaited (waiting); the value is the time of the reading.",
                labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
            )
            names = [str(self._max_lora), ",".join(self._awaited), ",".join(self._loaded)]
            adapters.add_metric(names, self._measured_at)
            yield adapters

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens),
            ("generation_tokens", "Tokens generated.", stats.completion_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prompt tokens found there.", stats.cached_tokens),
            ("num_preemptions", "Requests taken out of the batch and run again.", stats.preemptions),
            ("spec_decode_num_drafts", "Rows of steps that verified drafts.", stats.draft_steps),
            ("spec_decode_num_draft_tokens", "Guessed tokens that steps verified.", stats.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Of those, tokens given out.", stats.accepted_tokens),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter

    def _counters_by_adapter(self) -> Iterator[Metric]:
        drafts = self._drafts
        for name, text, value in (
            ("drafted_tokens", "Guessed tokens that steps verified, of the adapters in memory.", "drafted"),
            ("accepted_tokens", "Of those, tokens given out.", "accepted"),
            ("draft_steps", "Rows of steps that verified drafts.", "steps"),
        ):
            counter = CounterMetricFamily(f"rootstock_adapter_{name}", text, labels=[*_LABELS, "adapter"])
            for digest, counts in drafts.items():
                counter.add_metric([*self._labels, digest], getattr(counts, value))
            yield counter


def _latency(name: str, text: str) -> _Histogram:
    return _Histogram(name, text, _LATENCY)
