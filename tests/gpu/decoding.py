"""The decode loop of the model's tests, on the device that holds the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.model.cache import KVCache
from engine.model.config import GROUPS, ModelConfig
from engine.model.model import Model
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext
from kernels.lora.cases import ListPool, random_group
from kernels.lora_work import SlotGroup
from tests.engine.model.checkpoints import BLOCK, PagedRun


class DeviceRun(PagedRun):
    """As `PagedRun`, with cache, ids and positions on the model's device; logits come back to the host."""

    def __init__(self, model: Model, num_seqs: int, max_len: int = 128, seed: int = 0) -> None:
        super().__init__(model, num_seqs, max_len, seed)
        self.kv = KVCache(model.config, self.kv.num_blocks, BLOCK, model.device, model.dtype)
        self.kv.layers[:, 1:] = float("nan")

    def step(
        self,
        shares: Sequence[tuple[int, Sequence[int]]],
        lora: LoraContext | None = None,
        slots: Sequence[int] | None = None,
    ) -> list[torch.Tensor]:
        seqs, lens = [seq for seq, _ in shares], [len(ids) for _, ids in shares]
        for seq, ids in shares:
            self.computed[seq] += len(ids)
        totals = [self.computed[seq] for seq in seqs]
        metadata = AttentionMetadata.build(lens, totals, self.tables[seqs], BLOCK)
        if lora is not None:
            assert slots is not None
            lora.begin(np.repeat([slots[seq] for seq in seqs], lens))
        ids = torch.tensor([token for _, tokens in shares for token in tokens], device=self.model.device)
        positions = torch.from_numpy(metadata.positions).to(self.model.device)
        hidden = self.model.forward(ids, positions, metadata, self.kv, lora)
        return list(self.model.logits(hidden).cpu().split(lens))


def random_adapters(config: ModelConfig, ranks: Sequence[dict[str, int]], device: str) -> ListPool:
    """One adapter per entry of `ranks`, which names the rank of each module it has."""
    groups: dict[tuple[int, str], list[SlotGroup | None]] = {}
    for layer in range(config.num_layers):
        for group, modules in GROUPS.items():
            shapes = [config.linear_shapes[module] for module in modules]
            slots = []
            for slot, per_module in enumerate(ranks):
                found = random_group(
                    [per_module.get(module, 0) for module in modules],
                    [0.2] * len(modules),
                    shapes[0][1],
                    [out_features for out_features, _ in shapes],
                    seed=100 * layer + slot,
                )
                slots.append(None if found is None else _moved(found, device))
            groups[layer, group] = slots
    return ListPool(groups)


def _moved(group: SlotGroup, device: str) -> SlotGroup:
    assert group.a is not None
    b = tuple(None if matrix is None else matrix.to(device) for matrix in group.b)
    return SlotGroup(group.a.to(device), b, group.ranks, group.scales)
