"""Counts how requests were served, per tenant, service tier and minute, and computes percentiles.

The edges of histogram buckets grow by the fourth root of two, so a percentile is exact to 19 %. What was
promised is counted exactly, apart from the histograms.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST_TOKEN_EDGES = tuple(0.001 * 2 ** (number / 4) for number in range(80))
"""Seconds, 1 ms to 15 min. Bucket k holds values above edge k - 1 and up to edge k."""
OUTPUT_RATE_EDGES = tuple(0.5 * 2 ** (number / 4) for number in range(56))
"""Tokens per second of a choice, 0.5 to 6900."""


def first_token_bucket(seconds: float) -> int:
    return bisect_left(FIRST_TOKEN_EDGES, seconds)


def output_rate_bucket(tokens_per_second: float) -> int:
    return bisect_left(OUTPUT_RATE_EDGES, tokens_per_second)


@dataclass(slots=True)
class Counts:
    """The counts of a set of requests; counts of two sets add up."""

    requests: int = 0
    """Requests that were answered or failed by the service's fault."""
    failed: int = 0
    first_tokens: int = 0
    """Requests that had a first token."""
    first_tokens_in_time: int = 0
    """Of these, first tokens within the tier's target at that time."""
    rated: int = 0
    """Responses long enough to have an output rate."""
    rated_fast: int = 0
    """Of these, responses at or above the rate promised at that time."""
    first_token_histogram: list[int] = field(default_factory=lambda: [0] * (len(FIRST_TOKEN_EDGES) + 1))
    output_rate_histogram: list[int] = field(default_factory=lambda: [0] * (len(OUTPUT_RATE_EDGES) + 1))

    def first_token(self, seconds: float, target: float) -> None:
        self.first_tokens += 1
        self.first_tokens_in_time += seconds <= target
        self.first_token_histogram[first_token_bucket(seconds)] += 1

    def output_rate(self, tokens_per_second: float, promised: float) -> None:
        self.rated += 1
        self.rated_fast += tokens_per_second >= promised
        self.output_rate_histogram[output_rate_bucket(tokens_per_second)] += 1

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.first_tokens += other.first_tokens
        self.first_tokens_in_time += other.first_tokens_in_time
        self.rated += other.rated
        self.rated_fast += other.rated_fast
        self.first_token_histogram = _added(self.first_token_histogram, other.first_token_histogram)
        self.output_rate_histogram = _added(self.output_rate_histogram, other.output_rate_histogram)


def _added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def percentile(histogram: Sequence[int], edges: Sequence[float], share: float) -> float | None:
    """Returns the value that `share` of the counted values do not exceed, interpolated within its bucket;
    None without any. A value beyond the last edge counts as that edge.
    """
    total = sum(histogram)
    if not total:
        return None
    wanted, seen = share * total, 0
    for bucket, count in enumerate(histogram):
        if count and seen + count >= wanted:
            if bucket == len(edges):
                return edges[-1]
            low = edges[bucket - 1] if bucket else 0.0
            return low + (edges[bucket] - low) * (wanted - seen) / count
        seen += count
    raise AssertionError("the counts do not add up to their sum")
