"""Makes a base model's linear layers in the chosen weight format: as they are, in 8 bits or in 4.

Embeddings and the output head are never quantised. FP8 and 4 bits are meant for GPUs; on a CPU their
references run, slowly, so that they can be tested there.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from kernels.activation import Activation, Parts, Projection
from kernels.linear_fp8 import Fp8Weight, Product, linear_fp8, num_parts, product
from kernels.linear_int4 import Int4Weight, linear_int4
from kernels.linear_int8 import Int8Weight, linear_int8

QUANTIZATIONS = ("none", "int8", "fp8", "int4")

LinearWeight: TypeAlias = Tensor | Fp8Weight | Int4Weight
"""Weights of one fused group: floats, which are quantised at load, or the checkpoint's quantised weights."""


class Linear(Protocol):
    """A linear layer, whatever its weight format."""

    @property
    def wants_fp8(self) -> bool:
        """Whether it reads the quantised activation instead of the plain one."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights and scales, as a product reads them."""
        ...

    def num_parts(self, num_rows: int) -> int:
        """In how many parts a product of so many rows can be left; 1 where it is computed whole."""
        ...

    def __call__(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection:
        """Overwrites `out_TN`, or the parts, with x W^T + bias, divided by the rows' scales where the result
        has any.
        """
        ...

    def letting_in(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection | None:
        """Computes the same, and lets the next kernel of the stream begin as soon as `x` is there. Computes
        nothing and returns None where it cannot.
        """
        ...


class _WholeLinear:
    """A linear layer whose products are computed whole, and let no kernel in early."""

    def num_parts(self, num_rows: int) -> int:
        return 1

    def letting_in(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> None:
        return None


class DenseLinear(_WholeLinear):
    """Weights in the model's own type."""

    wants_fp8 = False

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        # Stored transposed on a CPU: at 1 to 8 rows the product is up to a quarter faster than with a view.
        self.weight_KN = weight_NK.t() if weight_NK.is_cuda else weight_NK.t().contiguous()
        self.bias_N = bias_N

    @property
    def num_bytes(self) -> int:
        return self.weight_KN.nbytes

    def __call__(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection:
        assert x.x_TK is not None
        if self.bias_N is not None:
            torch.addmm(self.bias_N, x.x_TK, self.weight_KN, out=out_TN)
        else:
            torch.mm(x.x_TK, self.weight_KN, out=out_TN)
        return Projection(out_TN)


class Int8Linear(_WholeLinear):
    """Weights in 8 bits per output channel, activations in 7 bits per row."""

    wants_fp8 = False

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        self.weight = Int8Weight.quantize(weight_NK, bias_N)

    @property
    def num_bytes(self) -> int:
        return self.weight.out_features * self.weight.in_features + self.weight.scale_N.nbytes

    def __call__(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection:
        assert x.x_TK is not None
        linear_int8(x.x_TK, self.weight, out_TN)
        return Projection(out_TN)


class Fp8Linear:
    """Weights in e4m3 with one scale or one per channel, activations in e4m3 with one per row."""

    wants_fp8 = True

    def __init__(self, weight: Fp8Weight) -> None:
        self.weight = weight

    @property
    def num_bytes(self) -> int:
        return self.weight.values_NK.nbytes + self.weight.scale.nbytes

    def num_parts(self, num_rows: int) -> int:
        return num_parts(num_rows, self.weight)

    def __call__(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection:
        return linear_fp8(x, self.weight, out_TN, parts=parts)

    def letting_in(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection | None:
        if product(len(out_TN), self.weight) is not Product.STREAM:
            return None
        return linear_fp8(x, self.weight, out_TN, lets_in_late=True, parts=parts)


class Int4Linear(_WholeLinear):
    """Weights in 4 bits with a scale per 128 inputs; activations plain, or e4m3 where so packed."""

    def __init__(self, weight: Int4Weight) -> None:
        self.weight = weight
        self.wants_fp8 = weight.for_fp8

    @property
    def num_bytes(self) -> int:
        zeros = 0 if self.weight.zeros is None else self.weight.zeros.nbytes
        return self.weight.words.nbytes + self.weight.scales.nbytes + zeros

    def __call__(self, x: Activation, out_TN: Tensor, parts: Parts | None = None) -> Projection:
        linear_int4(x, self.weight, out_TN)
        return Projection(out_TN)


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raises ValueError where `quantization` does not exist on `device`."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"unknown quantization {quantization!r}; use one of {', '.join(QUANTIZATIONS)}")
    if quantization == "int8" and device.type != "cpu":
        raise ValueError("quantization 'int8' needs a CPU; on a GPU use none, fp8 or int4")


def make_linear(quantization: str, weight: LinearWeight, bias_N: Tensor | None) -> Linear:
    """Returns a linear layer of checked `quantization`, on the weight's device.

    A weight that is quantised already stays as it is, and holds its own bias.
    """
    if isinstance(weight, Fp8Weight):
        return Fp8Linear(weight)
    if isinstance(weight, Int4Weight):
        return Int4Linear(weight)
    if quantization == "fp8":
        return Fp8Linear(Fp8Weight.quantize(weight, bias_N))
    if quantization == "int4":
        return Int4Linear(Int4Weight.quantize(weight, bias_N=bias_N))
    if quantization == "int8":
        return Int8Linear(weight, bias_N)
    return DenseLinear(weight, bias_N)
