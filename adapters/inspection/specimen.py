"""Provides a tiny valid adapter and its base as files in memory, on which the zygote warms up."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

_HIDDEN = 16
_RANK = 2
_BASE: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": _HIDDEN,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
_CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": _RANK,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
    "rank_pattern": {"q_proj": _RANK},
}


def specimen(name: Literal["weights", "config", "base"]) -> int:
    """Returns a descriptor of the file."""
    contents = {"weights": _weights, "config": lambda: _json(_CONFIG), "base": lambda: _json(_BASE)}
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, contents[name]())
    return descriptor


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _weights() -> bytes:
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    size = 2 * _RANK * _HIDDEN
    header = _json(
        {
            f"{module}.lora_A.weight": {
                "dtype": "BF16", "shape": [_RANK, _HIDDEN], "data_offsets": [0, size],
            },
            f"{module}.lora_B.weight": {
                "dtype": "BF16", "shape": [_HIDDEN, _RANK], "data_offsets": [size, 2 * size],
            },
        }
    )  # fmt: skip
    return len(header).to_bytes(8, "little") + header + b"\x80\x3f" * size
