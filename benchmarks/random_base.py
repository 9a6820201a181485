"""Generates a base model of random weights on the device: no files, no downloads, memory bounded by one
layer.

Two kinds of weights. `Plain` ones are normal, 1 / sqrt(K) wide: for speed, where only sizes matter.
`Outliers` have what makes quantisation hard in trained models: heavy-tailed weights (Student's t of 5
degrees), norms whose weights vary by channel with a few an order of magnitude larger, so that the same few
input channels of every linear are large in every token, blocks that add little to the residual stream, and an
output head wide enough that next-token distributions are about as peaked as a trained model's.

Weights are handed over in the model's type, one linear at a time.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from engine.model.collectives import ShardGroup
from engine.model.config import GROUPS, ModelConfig
from engine.model.model import Layer, Model
from engine.model.quantization import check_quantization, make_linear
from engine.model.shards import sharded_config

RESIDUAL_GROUPS = ("o", "down")
"""Linears whose outputs are added to the residual stream."""


def residual_gain(config: ModelConfig) -> float:
    """What keeps all blocks together about as large as the embedding, as models are initialised (GPT-2)."""
    return (2 * config.num_layers) ** -0.5


class Weights(Protocol):
    """Draws tensors in the order they are asked for. `gain` is for weights like a trained model's."""

    def linear(self, rows: int, columns: int, gain: float = 1.0) -> Tensor: ...
    def norm(self, size: int) -> Tensor: ...
    def head(self, rows: int, columns: int) -> Tensor: ...


class Plain:
    """Normal numbers; norms are ones."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def linear(self, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return self.normal(rows, columns).mul_(columns**-0.5)

    def norm(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self._dtype, device=self._device)

    def head(self, rows: int, columns: int) -> Tensor:
        return self.linear(rows, columns)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self._dtype, device=self._device, generator=self._generator)


class Outliers(Plain):
    """Numbers with the tails of a trained model's."""

    DEGREES = 5
    """Degrees of freedom of Student's t: one weight in 2 000 is six standard deviations out, not
    one in 5e8."""
    CHANNELS = 1 / 256
    """Share of the channels that are outliers, the same ones in all layers."""
    MAGNITUDE = 16.0
    """How much larger than the others they are, median."""
    SPREAD = 0.3
    """Sigma of the logarithm of the other norm weights."""
    HEAD = 3.5
    """Standard deviation of the logits."""

    def norm(self, size: int) -> Tensor:
        weights = (self.SPREAD * self.normal(size)).exp_()
        channels = torch.arange(0, size, round(1 / self.CHANNELS), device=self._device) + 7
        factors = self.MAGNITUDE * (0.3 * self.normal(len(channels))).exp_()
        weights[channels % size] *= factors
        return weights

    def linear(self, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        # t = normal / sqrt(chi squared / degrees).
        weight = self.normal(rows, columns)
        chi = torch.zeros_like(weight)
        for _ in range(self.DEGREES):
            chi += self.normal(rows, columns).square_()
        weight /= (chi / self.DEGREES).sqrt_()
        # Outlier channels would drown the others in the products; trained weights are smaller there.
        spread = self.DEGREES / (self.DEGREES - 2)
        return weight.mul_(gain).div_(math.sqrt(columns * spread * (1 + self.CHANNELS * self.MAGNITUDE**2)))

    def head(self, rows: int, columns: int) -> Tensor:
        # What it reads has the final norm behind it: every number about 1.
        return self.normal(rows, columns).mul_(self.HEAD * columns**-0.5)


def random_base(
    config: ModelConfig,
    quantization: str = "none",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    *,
    outliers: bool = False,
    seed: int = 0,
    group: ShardGroup | None = None,
) -> Model:
    """`dtype` is what the model computes in: bf16 on a GPU and fp32 on a CPU, if not said. With `group`, the
    model has the sizes of this rank's part, and numbers of its own.

    The weights before quantisation depend on the seed, the device's kind and the type alone: two bases of
    different quantisation are the same model.
    """
    device = torch.device(device)
    check_quantization(quantization, device)
    if dtype is None:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    num_ids = config.vocab_size
    if group is not None:
        config, num_ids = sharded_config(config, group.shard.size), -(-num_ids // group.shard.size)
        seed += 2 * group.shard.rank
    weights: Weights = (Outliers if outliers else Plain)(device, dtype, seed)
    embedding_VH = Plain(device, dtype, seed + 1).normal(num_ids, config.hidden_size)
    layers = [_layer(config, quantization, weights) for _ in range(config.num_layers)]
    norm_H = Plain(device, dtype).norm(config.hidden_size)
    head_VH = weights.head(num_ids, config.hidden_size)
    return Model(config, quantization, embedding_VH, layers, norm_H, head_VH, group)


def _layer(config: ModelConfig, quantization: str, weights: Weights) -> Layer:
    linears = {}
    for group, modules in GROUPS.items():
        rows = sum(config.linear_shapes[module][0] for module in modules)
        columns = config.linear_shapes[modules[0]][1]
        gain = residual_gain(config) if group in RESIDUAL_GROUPS else 1.0
        linears[group] = make_linear(quantization, weights.linear(rows, columns, gain), None)
    return Layer(
        input_norm_H=weights.norm(config.hidden_size),
        post_norm_H=weights.norm(config.hidden_size),
        q_norm_D=None,
        k_norm_D=None,
        **linears,
    )
