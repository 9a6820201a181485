"""Defines the models that benchmarks run on, by name: sizes alone, with random weights. Loads no torch."""

from __future__ import annotations

from engine.model.config import ModelConfig, RopeScaling
from engine.planner.shapes import published_shape

SHAPES: dict[str, ModelConfig] = {
    "llama-3.1-8b": published_shape("llama-3.1-8b"),
    "llama-3.1-70b": published_shape("llama-3.1-70b"),
    "random-300m": ModelConfig(
        architecture="llama",
        num_layers=12,
        hidden_size=1536,
        num_heads=12,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=4096,
        vocab_size=16_384,
        rope_theta=10_000.0,
        rope_scaling=RopeScaling("default"),
        rms_eps=1e-5,
        max_position=2048,
        eos_ids=(0,),
    ),
    "tiny": ModelConfig(
        architecture="llama",
        num_layers=2,
        hidden_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=256,
        vocab_size=512,
        rope_theta=10_000.0,
        rope_scaling=RopeScaling("default"),
        rms_eps=1e-5,
        max_position=2048,
        eos_ids=(0,),
    ),
}
"""`llama-3.1-8b` is what speed is measured on; `random-300m` (300 million weights) is what the quality
of a quantised base is measured on, besides sapling; `tiny` is for tests."""


def shape(name: str) -> ModelConfig:
    """Raises ValueError when there is none of that name."""
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]
