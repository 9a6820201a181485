"""Exposes what the API process measures about serving as Prometheus metrics.

Labels are few and fixed: service classes, routes, status and error codes; never a key, a tenant or an
adapter, whose number is unbounded. The process that talks to the engine mirrors what the engine measures
itself (queue wait, occupancy).
"""

from __future__ import annotations

from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_LATENCY = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_HTTP_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 300.0)

Metric = TypeVar("Metric", Counter, Histogram)

CLASSES = ("priority", "default", "flex")
"""Service classes."""
GRAMMAR_RESULTS = ("accepted", "refused", "over_limit", "cached", "busy", "failed")
"""What a check of a grammar can come to."""


class ServingMetrics:
    """One process's counters, on a registry of their own. Durations are in seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._children: dict[tuple[Counter | Histogram, tuple[str, ...]], Any] = {}
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._open_latencies()
        self._open_counters()
        self._open_grammar_checks()
        self.open_streams = Gauge(
            "rootstock_open_streams", "Answers being streamed now.", registry=self.registry
        )

    def _open_latencies(self) -> None:
        self._time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first output token.",
            ["service_tier"],
            _LATENCY,
        )
        self._time_per_output_token = self._histogram(
            "time_per_output_token_seconds",
            "Mean time between a choice's output tokens after the first (TPOT, inter-token latency).",
            ["service_tier"],
            _TOKEN_LATENCY,
        )
        self._end_to_end = self._histogram(
            "request_duration_seconds",
            "From a generation request's arrival to the end of its answer.",
            ["service_tier"],
            _LATENCY,
        )
        self._http_duration = self._histogram(
            "http_request_duration_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route"],
            _HTTP_LATENCY,
        )

    def _open_counters(self) -> None:
        self._tokens = Counter(
            "rootstock_tokens",
            "Tokens billed. Kinds: prompt, cached (part of prompt) and completion.",
            ["service_tier", "kind"],
            registry=self.registry,
        )
        self._errors = Counter(
            "rootstock_errors",
            "Requests answered with an error, or broken off by one in mid-stream.",
            ["code"],
            registry=self.registry,
        )
        self._requests = self._outcomes(
            "requests",
            "Generation requests answered (ok), and failed by the service's fault (failed).",
            "ok",
            "failed",
        )
        self._first_tokens = self._outcomes(
            "first_tokens",
            "First tokens within their class's target (in_time), and after it (late).",
            "in_time",
            "late",
        )
        self._output_rates = self._outcomes(
            "output_rates",
            "Answers at the output rate promised to their class (fast), and below it (slow).",
            "fast",
            "slow",
        )
        self._http = Counter(
            "rootstock_http_requests",
            "HTTP requests by route template and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )

    def _open_grammar_checks(self) -> None:
        self._grammar_checks = Counter(
            "rootstock_grammar_checks",
            "Grammars of structured outputs by what their check came to.",
            ["result"],
            registry=self.registry,
        )
        for result in GRAMMAR_RESULTS:
            self._grammar_checks.labels(result)
        self._grammar_check_duration = self._histogram(
            "grammar_check_duration_seconds",
            "Time that the check of a grammar took, without waiting for a slot.",
            [],
            _HTTP_LATENCY,
        )

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"rootstock_{name}", text, labels, registry=self.registry, buckets=buckets)

    def _outcomes(self, name: str, text: str, *outcomes: str) -> Counter:
        made = Counter(f"rootstock_{name}", text, ["service_tier", "outcome"], registry=self.registry)
        # From the start: Prometheus misses the first event of a counter that begins with it.
        for tier in CLASSES:
            for outcome in outcomes:
                made.labels(tier, outcome)
        return made

    def served(self, service_tier: str, in_time: bool | None, fast: bool | None) -> None:
        """Counts a response with its measures; None: not measured."""
        self._of(self._requests, service_tier, "ok").inc()
        if in_time is not None:
            self._of(self._first_tokens, service_tier, "in_time" if in_time else "late").inc()
        if fast is not None:
            self._of(self._output_rates, service_tier, "fast" if fast else "slow").inc()

    def unserved(self, service_tier: str) -> None:
        """Counts a request that failed by the service's fault."""
        self._of(self._requests, service_tier, "failed").inc()

    def first_token(self, service_tier: str, seconds: float) -> None:
        self._of(self._time_to_first_token, service_tier).observe(seconds)

    def answered(self, service_tier: str, seconds: float, seconds_per_token: float | None) -> None:
        """Counts a completed response. `seconds_per_token`: None for fewer than two tokens."""
        self._of(self._end_to_end, service_tier).observe(seconds)
        if seconds_per_token is not None:
            self._of(self._time_per_output_token, service_tier).observe(seconds_per_token)

    def billed(self, service_tier: str, prompt: int, cached: int, completion: int) -> None:
        self._of(self._tokens, service_tier, "prompt").inc(prompt)
        self._of(self._tokens, service_tier, "cached").inc(cached)
        self._of(self._tokens, service_tier, "completion").inc(completion)

    def failed(self, code: str) -> None:
        self._of(self._errors, code).inc()

    def grammar_checked(self, result: str, seconds: float | None = None) -> None:
        """Counts a check by its result, one of GRAMMAR_RESULTS. `seconds`: None where nothing was checked."""
        self._of(self._grammar_checks, result).inc()
        if seconds is not None:
            self._grammar_check_duration.observe(seconds)

    def http(self, method: str, route: str, status: int, seconds: float) -> None:
        self._of(self._http, method, route, str(status)).inc()
        self._of(self._http_duration, route).observe(seconds)

    def _of(self, metric: Metric, *labels: str) -> Metric:
        """Returns the metric under these labels. Cached: `labels` itself costs several times as much as
        counting.
        """
        key = metric, labels
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*labels)
        return child
