"""Inputs shared by the tests of every implementation of the op, and by its benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Truncation:
    """What one row asks for."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


TRUNCATIONS = [
    Truncation(),
    Truncation(temperature=0.3),
    Truncation(temperature=2.5),
    Truncation(top_k=1),
    Truncation(top_k=7),
    Truncation(top_k=10**6),
    Truncation(top_k=300),
    Truncation(top_p=0.0),
    Truncation(top_p=0.1),
    Truncation(top_p=0.9),
    Truncation(top_p=0.999),
    Truncation(min_p=0.05),
    Truncation(min_p=1.0),
    Truncation(temperature=0.7, top_k=40, top_p=0.8),
    Truncation(temperature=1.5, top_k=400, top_p=0.95, min_p=0.02),
]
"""Each alone and all mixed in one batch."""


def logits(num_rows: int, vocab_size: int, *, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    """Normal logits [S, V]; a spread of 3 is peaked like a trained model, 0.1 nearly flat."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread
