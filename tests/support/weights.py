"""Files of the form of an adapter's, of any size, without torch."""

from __future__ import annotations

import json
import random
import struct


def safetensors_file(num_bytes: int, seed: int = 0) -> bytes:
    """A well-formed file of about `num_bytes`: one LoRA pair's keys, noise for weights."""
    rank = 4
    rows = max(1, num_bytes // (2 * rank * 4))
    key = "base_model.model.model.layers.0.self_attn.q_proj"
    size = rank * rows * 4
    header = json.dumps(
        {
            f"{key}.lora_A.weight": {"dtype": "F32", "shape": [rank, rows], "data_offsets": [0, size]},
            f"{key}.lora_B.weight": {"dtype": "F32", "shape": [rows, rank], "data_offsets": [size, 2 * size]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + _noise(2 * size, seed)


def _noise(size: int, seed: int) -> bytes:
    block = random.Random(seed).randbytes(min(size, 16_000_000))
    return (block * (size // max(1, len(block)) + 1))[:size]


CONFIG = json.dumps(
    {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
).encode()
