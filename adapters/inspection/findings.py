"""What an inspection found out about an adapter that can be served. Plain data: it crosses processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One adapted module. Norms are Frobenius norms, None where values were not read."""

    path: str
    """In the base, such as `model.layers.3.self_attn.q_proj`."""
    rank: int
    scale: float
    dtype: str
    """Of A and B in the file: F32, F16, BF16; "F32/F16" where they differ."""
    norm_a: float | None = None
    norm_b: float | None = None
    norm_delta: float | None = None
    """Of scale * B A, what is added to the base's weight."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """An adapter that fits its base."""

    config: dict[str, Any]
    """The fields of `adapter_config.json` that decide what is computed."""
    num_tensors: int
    num_bytes: int
    """Of the file of weights."""
    rank: int
    """Largest of any module."""
    modules: list[ModuleFacts]
    """Layer by layer."""
    warnings: list[str] = field(default_factory=list)
    """Odd, and no reason to refuse."""
