"""Defines the result of an inspection of a valid adapter. Plain data, since it is passed between
processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One adapted module. Norms are Frobenius norms, None if values were not read."""

    path: str
    """Path in the base, such as `model.layers.3.self_attn.q_proj`."""
    rank: int
    scale: float
    dtype: str
    """Type of A and B in the file: F32, F16, BF16; "F32/F16" if they differ."""
    norm_a: float | None = None
    norm_b: float | None = None
    norm_delta: float | None = None
    """Norm of scale * B A, which is added to the base's weight."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """An adapter that fits its base."""

    config: dict[str, Any]
    """The fields of `adapter_config.json` that affect what is computed."""
    num_tensors: int
    num_bytes: int
    """Size of the weights file."""
    rank: int
    """Largest rank of any module."""
    modules: list[ModuleFacts]
    """Ordered by layer."""
    warnings: list[str] = field(default_factory=list)
    """Unusual properties that do not prevent serving."""
