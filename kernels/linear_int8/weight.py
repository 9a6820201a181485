"""Holds a linear layer's weight in 8 bits, one scale per output channel, and on a CPU FBGEMM's
packed copy.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WEIGHT_RANGE = 127


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Weight in 8 bits. Exactly one of `packed` and `values_NK` holds it: packing replaces the plain copy."""

    out_features: int
    in_features: int
    scale_N: Tensor
    bias_N: Tensor | None
    values_NK: Tensor | None
    packed: Any

    @classmethod
    def quantize(
        cls, weight_NK: Tensor, bias_N: Tensor | None = None, pack: bool | None = None
    ) -> Int8Weight:
        """Rounds to nearest, symmetric.

        Args:
            weight_NK: any float type; must be finite.
            bias_N: kept in fp32 and added after the product.
            pack: FBGEMM's layout, CPU only; None picks it on a CPU that has it.
        """
        if not torch.isfinite(weight_NK).all():
            raise ValueError("cannot quantise a weight that is not finite")
        wide = weight_NK.float()
        scale_N = wide.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny * WEIGHT_RANGE) / WEIGHT_RANGE
        values = torch.round(wide / scale_N[:, None]).clamp_(-WEIGHT_RANGE, WEIGHT_RANGE).to(torch.int8)
        if pack is None:
            pack = weight_NK.device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines
        bias = None if bias_N is None else bias_N.float()
        packed = _pack(values, scale_N) if pack else None
        return cls(weight_NK.shape[0], weight_NK.shape[1], scale_N, bias, None if pack else values, packed)


def _pack(values_NK: Tensor, scale_N: Tensor) -> Any:
    zero_points = torch.zeros(len(scale_N), dtype=torch.long)
    with warnings.catch_warnings():
        # torch 2.13 announces the end of quantised tensor types; FBGEMM's packing takes nothing else as yet.
        warnings.filterwarnings(
            "ignore", message=".*quantized tensor creation functions", category=UserWarning
        )
        quantized = torch._make_per_channel_quantized_tensor(values_NK, scale_N.double(), zero_points, 0)
    return torch.ops.quantized.linear_prepack(quantized, None)
