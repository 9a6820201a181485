"""Describes what a deployment is planned for: its load, its adapters, one replica, and its targets."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_SIGMA = 1.1
"""Spread of prompt lengths (of their logarithm), wide as conversations are; `benchmarks.workload` draws them
so."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that arrive, as a Poisson process."""

    requests_per_s: float
    prompt_tokens: float
    """Mean."""
    output_tokens: float
    """Mean."""
    output_variation: float = 1.0
    """Squared coefficient of variation of output lengths; 0: all alike, 1: exponential."""

    @property
    def mean_context(self) -> float:
        """Tokens that a decoding row attends to, on average: long outputs are met more often."""
        return self.prompt_tokens + self.output_tokens * (1 + self.output_variation) / 2


@dataclass(frozen=True, slots=True)
class AdapterLoad:
    """Adapters that requests ask for."""

    count: int = 0
    rank: int = 16
    dtype: str = "bf16"
    zipf: float = 1.0
    """Exponent of their popularity."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Settings of one engine; the defaults are the engine's."""

    max_rows: int = 256
    max_batch_tokens: int = 2048
    num_slots: int = 256
    memory_share: float = 0.9
    host_memory_bytes: int = 256 << 30
    """Of the host, per replica."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Service level objectives; both of 99 % of requests."""

    ttft_s: float = 0.5
    token_s: float = 0.05
