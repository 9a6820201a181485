"""Counts the bytes of a base model's weights, keys and values, and adapters, from its shape alone.

Loads no torch. `engine/scheduling/byte_floor.py` counts the same of a model that is loaded.
"""

from __future__ import annotations

from engine.model.config import ModelConfig

WEIGHT_BYTES = {"none": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes per weight of a linear layer; int4 has a bf16 scale for every 128 weights."""
KV_BYTES = {"auto": 2, "fp8": 1}
RANK_ROW_SCALE_BYTES = 4


def linear_weights(config: ModelConfig) -> int:
    """Returns the number of weights of all linears of all layers."""
    return config.num_layers * sum(rows * columns for rows, columns in config.linear_shapes.values())


def linear_bytes(config: ModelConfig, quantization: str) -> float:
    """Returns the bytes of all linears of all layers."""
    return linear_weights(config) * WEIGHT_BYTES[quantization]


def head_bytes(config: ModelConfig) -> int:
    """Returns the bytes of the output head, which stays in bf16."""
    return config.vocab_size * config.hidden_size * 2


def kv_token_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Returns the bytes of one token's keys and values in all layers."""
    return config.num_layers * 2 * config.kv_size * KV_BYTES[kv_dtype]


def adapter_bytes(config: ModelConfig, rank: int, dtype: str = "bf16") -> int:
    """Returns the bytes of one adapter of `rank` on all seven linears of every layer."""
    elements = rank * sum(rows + columns for rows, columns in config.linear_shapes.values())
    if dtype == "fp8":
        return config.num_layers * (elements + rank * len(config.linear_shapes) * RANK_ROW_SCALE_BYTES)
    return config.num_layers * elements * 2


def output_bytes(config: ModelConfig) -> int:
    """Returns the bytes of one token's bf16 outputs of all linears: LoRA reads and writes them again."""
    return config.num_layers * 2 * sum(rows for rows, _ in config.linear_shapes.values())
