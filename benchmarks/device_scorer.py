"""Computes next-token logits on a GPU with the serving kernels: the step is described in device memory.

One sequence is a step of its own, kernel by kernel, without graphs and sampling.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from engine.lora.artifact import PackedAdapter
from engine.lora.device_pool import DevicePool
from engine.lora.image import image_bytes
from engine.lora.ranges import rounded
from engine.model.cache import KVCache
from engine.model.model import Model
from kernels.attention import AttentionGeometry, DevicePlan
from kernels.lora.device import DeviceLora
from kernels.step_inputs import StepInputs

BLOCK_SIZE = 16


class DeviceScorer:
    """A `Scorer` of `benchmarks.scorer`."""

    def __init__(
        self, model: Model, adapters: Mapping[str, PackedAdapter], max_len: int, kv_dtype: str = "auto"
    ) -> None:
        self.model = model
        config, device = model.config, model.device
        self._slots = {name: slot for slot, name in enumerate(adapters)}
        self._pool = self._filled_pool(adapters)
        num_blocks = -(-max_len // BLOCK_SIZE)
        stored = torch.float8_e4m3fn if kv_dtype == "fp8" else model.dtype
        self._kv = KVCache(config, num_blocks + 1, BLOCK_SIZE, device, stored)
        self._inputs = StepInputs(device)
        self._ids = self._inputs.field("scorer.ids", max_len)
        geometry = AttentionGeometry(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
        self._plan = DevicePlan(self._inputs, geometry, 1, max_len, num_blocks, device)
        widths_in = sorted({columns for _, columns in config.linear_shapes.values()})
        self._lora = DeviceLora(self._pool.table, self._inputs, max_len, widths_in)
        self._inputs.freeze()
        self._plan.tables_RB[0] = torch.arange(1, num_blocks + 1, device=device)
        self._no_ids = torch.zeros(1, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def logits(self, token_ids: list[int], adapter: str | None, computed: int = 0) -> Tensor:
        total, num_tokens = len(token_ids), len(token_ids) - computed
        self._inputs.begin()
        self._plan.fill(np.zeros(1, np.int64), np.array([num_tokens]), np.array([total]), num_tokens)
        self._ids.host[:num_tokens] = token_ids[computed:]
        if adapter is not None:
            self._lora.begin(np.full(num_tokens, self._slots[adapter]))
        with self._pool.launching():
            self._inputs.send()
            hidden_TH = self.model.forward_on_device(
                self._ids.device[:num_tokens],
                self._no_ids,
                self._plan.bucket(num_tokens, decode_only=num_tokens == 1),
                self._kv,
                None if adapter is None else self._lora,
            )
            # The next call overwrites what this one returns.
            return self.model.logits(hidden_TH).clone()

    def _filled_pool(self, adapters: Mapping[str, PackedAdapter]) -> DevicePool:
        sizes = [rounded(image_bytes(packed.manifest)) for packed in adapters.values()]
        pool = DevicePool(
            self.model.config, max(1, len(adapters)), sum(sizes), max(sizes, default=0), self.model.device
        )
        for name, packed in adapters.items():
            pool.load(self._slots[name], pool.adopt(packed))
        return pool
