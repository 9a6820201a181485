"""How a base model's linear layers hold their weights: as they are, or in 8 bits.

Owns the choice per layer. Refuses to know what the layer is for; embeddings and the output head are never
quantised.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.linear_int8 import Int8Weight, linear_int8

Linear = Callable[[Tensor, Tensor], Tensor]
"""`linear(x_TK, out_TN)` overwrites `out_TN` with x W^T + bias."""

CPU_QUANTIZATIONS = ("none", "int8")
GPU_QUANTIZATIONS = ("fp8", "int4")


class DenseLinear:
    """Weights in the model's own type."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        # Stored transposed: at 1 to 8 rows the product is up to a quarter faster than with W^T as a view.
        self.weight_KN = weight_NK.t().contiguous()
        self.bias_N = bias_N

    def __call__(self, x_TK: Tensor, out_TN: Tensor) -> Tensor:
        if self.bias_N is not None:
            return torch.addmm(self.bias_N, x_TK, self.weight_KN, out=out_TN)
        return torch.mm(x_TK, self.weight_KN, out=out_TN)


class Int8Linear:
    """Weights in 8 bits per output channel, activations in 7 bits per row."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        self.weight = Int8Weight.quantize(weight_NK, bias_N)

    def __call__(self, x_TK: Tensor, out_TN: Tensor) -> Tensor:
        return linear_int8(x_TK, self.weight, out_TN)


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raises ValueError where `quantization` does not exist on `device`."""
    if quantization in GPU_QUANTIZATIONS:
        raise ValueError(f"quantization {quantization!r} needs a GPU build; on this device: none, int8")
    if quantization not in CPU_QUANTIZATIONS:
        raise ValueError(f"unknown quantization {quantization!r}; there are none, int8, fp8, int4")
    if quantization == "int8" and device.type != "cpu":
        raise ValueError("quantization 'int8' is for CPUs; on a GPU: none")


def make_linear(quantization: str, weight_NK: Tensor, bias_N: Tensor | None) -> Linear:
    """A linear layer of checked `quantization`, on the weight's device."""
    return Int8Linear(weight_NK, bias_N) if quantization == "int8" else DenseLinear(weight_NK, bias_N)
