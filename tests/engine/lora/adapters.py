"""Random packed adapters for the tiny base."""

from __future__ import annotations

import numpy as np
import torch

from adapters.rounding import to_pair
from engine.lora.artifact import GROUPS, Dtype, PackedAdapter
from engine.lora.device_pool import DevicePool
from engine.lora.values import rank_scales
from kernels.lora.table import BF16, DTYPE, E4M3, RANK_SCALES, A, B
from tests.adapters.peft_files import tiny_config

CONFIG = tiny_config()


def assert_holds(pool: DevicePool, slot: int, adapter: PackedAdapter) -> None:
    """What the table says of a slot leads to the adapter's own words, and to nothing else.

    `adapter` is bf16 or FP8.
    """
    with pool.launching():
        pass
    offsets, ranks = pool.table.offsets[:, :, slot].cpu(), pool.table.ranks[:, :, slot].cpu()
    itemsize = adapter.slab.itemsize

    def words(offset: torch.Tensor, expected: np.ndarray) -> None:
        start = int(offset)
        assert start % 64 == 0
        found = pool.table.arena[start : start + expected.nbytes].cpu().numpy()
        np.testing.assert_array_equal(found, np.ascontiguousarray(expected).view(np.uint8).reshape(-1))

    for layer, entries in enumerate(adapter.manifest.layers):
        for index, (group, names) in enumerate(GROUPS.items()):
            entry = entries.get(group)
            modules = {} if entry is None else entry.modules
            expected = [modules[name].rank if name in modules else 0 for name in names]
            assert ranks[layer, index, :DTYPE].tolist() == expected + [0] * (DTYPE - len(names))
            if entry is None:
                continue
            assert ranks[layer, index, DTYPE] == (BF16 if itemsize == 2 else E4M3)
            words(offsets[layer, index, A], adapter.a(layer, group))
            words(offsets[layer, index, RANK_SCALES], rank_scales(adapter, layer, group))
            for place, name in enumerate(names):
                if name in modules:
                    words(offsets[layer, index, B + place], adapter.b(layer, group, name))


def assert_empty(pool: DevicePool, slot: int) -> None:
    with pool.launching():
        pass
    assert not pool.table.ranks[:, :, slot, :DTYPE].any()


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
