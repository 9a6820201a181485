"""Generates a service's workload: when requests arrive, how long they are, and for which adapter.

Draws are random and reproducible from a seed:

    arrivals    Poisson: exponential gaps at a given rate, or all at once
    lengths     log-normal, prompt and output apart, cut to a range. The means are ShareGPT's as published
                with PagedAttention (arXiv 2309.06180, figure 11: 161.31 tokens in, 337.99 out); the spreads
                are ours, wide as conversations are: sigma 1.1 and 0.9 of the logarithm. Cutting lowers the
                mean, so a report says what was drawn
    adapters    Zipf: the k-th most popular of n adapters is requested in proportion to 1 / k^exponent
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of token counts, by its own mean before it is cut to [low, high]."""

    mean: float
    sigma: float
    low: int = 4
    high: int = 1024

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        location = math.log(self.mean) - self.sigma**2 / 2
        drawn = np.rint(rng.lognormal(location, self.sigma, count)).astype(np.int64)
        return drawn.clip(self.low, self.high)


SHAREGPT_PROMPT = Lengths(161.31, 1.1)
SHAREGPT_OUTPUT = Lengths(337.99, 0.9)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request that will arrive."""

    at: float
    """Seconds after the start."""
    prompt_len: int
    output_len: int
    adapter: int
    """Its place in popularity, 0 the most popular."""


def arrival_times(rng: np.random.Generator, rate: float, count: int) -> np.ndarray:
    """Returns the times of a Poisson process of `rate` per second; infinity: all at the start."""
    if rate <= 0:
        raise ValueError(f"rate must be positive, not {rate}")
    if math.isinf(rate):
        return np.zeros(count)
    return np.cumsum(rng.exponential(1 / rate, count))


def zipf_shares(num_adapters: int, exponent: float = 1.0) -> np.ndarray:
    """Share of the requests that each of the adapters gets, the most popular first."""
    if num_adapters < 1:
        raise ValueError(f"there must be at least one adapter, not {num_adapters}")
    weights = np.arange(1, num_adapters + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def draw_arrivals(
    seed: int,
    rate: float,
    count: int,
    num_adapters: int,
    prompt: Lengths = SHAREGPT_PROMPT,
    output: Lengths = SHAREGPT_OUTPUT,
    exponent: float = 1.0,
) -> list[Arrival]:
    """`count` requests in the order of their arrival.

    Lengths depend on the seed and the count alone: runs at other rates or over other numbers of adapters
    are asked for the same work.
    """
    times_rng, lengths_rng, adapters_rng = (np.random.default_rng([seed, part]) for part in range(3))
    times = arrival_times(times_rng, rate, count)
    prompts, outputs = prompt.draw(lengths_rng, count), output.draw(lengths_rng, count)
    adapters = adapters_rng.choice(num_adapters, size=count, p=zipf_shares(num_adapters, exponent))
    return [
        Arrival(float(at), int(prompt_len), int(output_len), int(adapter))
        for at, prompt_len, output_len, adapter in zip(times, prompts, outputs, adapters, strict=True)
    ]
