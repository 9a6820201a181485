"""Random packed adapters for the tiny base."""

from __future__ import annotations

import numpy as np
import torch

from adapters.storage import to_pair
from engine.lora.artifact import Dtype, PackedAdapter
from tests.adapters.peft_files import tiny_config

CONFIG = tiny_config()


def packed(*, dtype: Dtype = "float32", seed: int = 0, num_layers: int = 2, **ranks: int) -> PackedAdapter:
    """Every layer alike, with a scale of a quarter of the module's rank."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal((rows, columns), "f4"))

    layer = {
        name: to_pair(
            matrix(rank, CONFIG.linear_shapes[name][1]),
            matrix(rank, CONFIG.linear_shapes[name][0]),
            0.25 * rank,
            dtype,
        )
        for name, rank in ranks.items()
    }
    return PackedAdapter.build([layer] * num_layers, "b" * 64, dtype)
