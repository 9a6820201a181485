"""Finds a base model's shape: by the name of a published model, or from a checkpoint's `config.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.model.config import ModelConfig, parse_config
from engine.planner.errors import InvalidPlan

_LLAMA_3_1: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rms_norm_eps": 1e-5,
    "eos_token_id": 128_001,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA_3_1 | {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14_336},
    "llama-3.1-70b": _LLAMA_3_1
    | {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_attention_heads": 64,
    },
}
"""What `config.json` of these models says, as far as their shape goes."""


def published_shape(name: str) -> ModelConfig:
    """Returns the shape of a published model. Raises KeyError when it is not listed."""
    return parse_config(PUBLISHED[name])


def find_shape(model: str) -> ModelConfig:
    """Returns the shape of `model`: a listed name, a checkpoint's directory, or a `config.json`.

    Raises InvalidPlan when there is none, or when the engine could not serve it.
    """
    if model in PUBLISHED:
        return published_shape(model)
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise InvalidPlan(
            f"no model {model!r}: pass a directory with a config.json, or one of {', '.join(PUBLISHED)}"
        )
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return parse_config(raw if isinstance(raw, dict) else {})
    except ValueError as error:
        raise InvalidPlan(f"{path}: {error}") from None
