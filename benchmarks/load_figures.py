"""Computes the figures of an open-loop run: percentiles, goodput, and what loading adapters costs.

TTFT     from a request's arrival to its first token
TPOT     (last token - first token) / (tokens - 1)
E2E      from arrival to the last token
ITL      between two chunks of one request
goodput  requests that meet the service level objective: share, and per second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.workload import Arrival

QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective of one request."""

    ttft_ms: float = 500.0
    tpot_ms: float = 50.0


@dataclass(slots=True)
class Timed:
    """One request's times, seconds since the start of the run."""

    arrived_at: float
    output_len: int
    cold: bool
    """Its adapter was not in a slot when it arrived."""
    num_tokens: int = 0
    chunk_times: list[float] = field(default_factory=list)

    def note(self, at: float, num_tokens: int) -> None:
        """Records that a chunk has arrived."""
        if num_tokens:
            self.num_tokens += num_tokens
            self.chunk_times.append(at)

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.chunk_times[0] - self.arrived_at)

    @property
    def tpot_ms(self) -> float:
        """0 for an answer of one token."""
        return 1e3 * (self.chunk_times[-1] - self.chunk_times[0]) / max(1, self.num_tokens - 1)

    @property
    def e2e_ms(self) -> float:
        return 1e3 * (self.chunk_times[-1] - self.arrived_at)


@dataclass(frozen=True, slots=True)
class StepNote:
    """One step of the engine."""

    ended_at: float
    num_tokens: int
    num_running: int
    num_waiting: int
    loading: bool
    """An adapter was being loaded while it ran."""


@dataclass(slots=True)
class Notes:
    """What happened, in the order it did; times in seconds since the start of the run."""

    requests: dict[str, Timed] = field(default_factory=dict)
    steps: list[StepNote] = field(default_factory=list)
    loads: int = 0
    evictions: int = 0
    preemptions: int = 0


def summarise(notes: Notes, arrivals: Sequence[Arrival], slo: Slo) -> dict[str, Any]:
    """Figures of one run; times in milliseconds."""
    requests = list(notes.requests.values())
    return {
        **of_work(arrivals),
        **of_requests(requests, slo),
        "steady_output_tok_s": steady_tok_s(notes.steps) if not arrivals[-1].at else None,
        "cold": cold_against_warm(requests),
        "itl_ms": inter_token_ms(requests, notes.steps),
        "loads": notes.loads,
        "evictions": notes.evictions,
        "preemptions": notes.preemptions,
    }


def of_work(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """What was asked for."""
    return {
        "requests": len(arrivals),
        "distinct_asked": len({arrival.adapter for arrival in arrivals}),
        "mean_prompt_len": round(float(np.mean([arrival.prompt_len for arrival in arrivals])), 1),
        "mean_output_len": round(float(np.mean([arrival.output_len for arrival in arrivals])), 1),
    }


def of_requests(requests: Sequence[Timed], slo: Slo) -> dict[str, Any]:
    """What each got, taken together. Seconds count from the start of the run to its last token."""
    seconds = max(request.chunk_times[-1] for request in requests)
    num_good = sum(r.ttft_ms <= slo.ttft_ms and r.tpot_ms <= slo.tpot_ms for r in requests)
    return {
        "seconds": round(seconds, 3),
        "output_tok_s": round(sum(request.num_tokens for request in requests) / seconds, 1),
        "ttft_ms": percentiles([request.ttft_ms for request in requests]),
        "tpot_ms": percentiles([request.tpot_ms for request in requests if request.num_tokens > 1]),
        "e2e_ms": percentiles([request.e2e_ms for request in requests]),
        "goodput": {"share": round(num_good / len(requests), 4), "per_s": round(num_good / seconds, 2)},
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns percentiles; of an empty sequence, none."""
    if not len(values):
        return {}
    return {f"p{q}": round(float(np.percentile(values, q)), 3) for q in QUANTILES}


def steady_tok_s(steps: Sequence[StepNote]) -> float | None:
    """Tokens per second while requests wait: neither filling up nor running empty. None: they never do.

    Says what the engine can do only of a run whose requests all came at the start.
    """
    waiting = [place for place, step in enumerate(steps) if step.num_waiting]
    if len(waiting) < 2:
        return None
    first, last = waiting[0], waiting[-1]
    num_tokens = sum(step.num_tokens for step in steps[first + 1 : last + 1])
    return round(num_tokens / (steps[last].ended_at - steps[first].ended_at), 1)


def cold_against_warm(requests: Sequence[Timed]) -> dict[str, Any]:
    """Compares TTFT of requests whose adapter had to be loaded with that of others."""
    cold = [request.ttft_ms for request in requests if request.cold]
    warm = [request.ttft_ms for request in requests if not request.cold]
    figures: dict[str, Any] = {
        "requests": len(cold), "ttft_ms": percentiles(cold), "warm_ttft_ms": percentiles(warm),
    }  # fmt: skip
    if cold and warm:
        figures["added_ms"] = {
            f"p{q}": round(float(np.percentile(cold, q) - np.percentile(warm, q)), 3) for q in (50, 99)
        }
    return figures


def inter_token_ms(requests: Sequence[Timed], steps: Sequence[StepNote]) -> dict[str, Any]:
    """ITL of running requests, in steps during which an adapter was being loaded and in others."""
    loading_at = {step.ended_at for step in steps if step.loading}
    during: list[float] = []
    otherwise: list[float] = []
    for request in requests:
        for before, after in zip(request.chunk_times, request.chunk_times[1:], strict=False):
            (during if after in loading_at else otherwise).append(1e3 * (after - before))
    return {"during_loads": percentiles(during), "otherwise": percentiles(otherwise)}
