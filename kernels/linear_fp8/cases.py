"""Builds inputs for the tests and benchmarks of the FP8 linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from kernels.activation import Activation, quantize_rows
from kernels.linear_fp8.weight import E4M3, Fp8Weight

L2_BYTES = 256 << 20
"""Several times what caches hold."""


def quantized(x_TK: Tensor) -> Activation:
    """Rows with scales, as rms_norm and silu_mul leave them."""
    values = torch.empty(x_TK.shape, dtype=E4M3, device=x_TK.device)
    scale_T = torch.empty(len(x_TK), device=x_TK.device)
    quantize_rows(x_TK, values, scale_T)
    return Activation(x_TK, values, scale_T)


@dataclass(frozen=True)
class Case:
    num_rows: int
    in_features: int
    out_features: int
    per_channel: bool = False
    with_bias: bool = False

    def inputs(self, device: str | torch.device = "cpu") -> tuple[Activation, Fp8Weight]:
        """Rows and channels of very different size; the second row is zero throughout where there is one."""
        generator = torch.Generator().manual_seed(self.num_rows + self.in_features)
        x = torch.randn(self.num_rows, self.in_features, generator=generator)
        x *= 10.0 ** torch.randint(-4, 4, (self.num_rows, 1), generator=generator)
        x[1:2] = 0
        weight = torch.randn(self.out_features, self.in_features, generator=generator) * 0.05
        if self.per_channel:
            weight *= 10.0 ** torch.randint(-2, 3, (self.out_features, 1), generator=generator)
        bias = torch.randn(self.out_features, generator=generator) if self.with_bias else None
        made = Fp8Weight.quantize(
            weight.to(device), None if bias is None else bias.to(device), self.per_channel
        )
        return quantized(x.to(device)), made

    def expected(self, activation: Activation, weight: Fp8Weight) -> Tensor:
        """True values, in double precision."""
        assert activation.quantized_TK is not None
        assert activation.scale_T is not None
        x = activation.quantized_TK.double() * activation.scale_T.double()[:, None]
        y = x @ (weight.values_NK.double() * weight.scale.double()[:, None]).t()
        return y if weight.bias_N is None else y + weight.bias_N.double()


CASES = [
    Case(1, 128, 64),
    Case(5, 100, 33, per_channel=True),
    Case(20, 256, 80, with_bias=True),
    Case(3, 2048, 64, per_channel=True, with_bias=True),
]
"""Small: the interpreter runs them."""

DEVICE_CASES = [
    # our kernel for few rows: every size of its tiles, channels that end within one, rows that do
    Case(1, 4096, 6144),
    Case(16, 4096, 4096, per_channel=True),
    Case(24, 4096, 6152, per_channel=True, with_bias=True),
    Case(33, 14336, 4096),
    Case(64, 4096, 28672),
    Case(128, 14336, 4096, per_channel=True),
    Case(7, 3600, 8192),
    # the library's, and ours where sizes do not suit it
    Case(256, 4096, 6144),
    Case(300, 4096, 6144, per_channel=True, with_bias=True),
    Case(9, 1000, 777, per_channel=True, with_bias=True),
    Case(200, 1000, 777),
    Case(2, 256, 640),
]


@dataclass(frozen=True)
class Bench:
    """One layer of the 8B shape."""

    layer: str
    num_rows: int
    per_channel: bool = False
    precision: str = "fp8"

    @property
    def shape(self) -> tuple[int, int]:
        return {
            "qkv": (6144, 4096),
            "o": (4096, 4096),
            "gate_up": (28672, 4096),
            "down": (4096, 14336),
        }[self.layer]

    @property
    def name(self) -> str:
        return f"{self.layer} M={self.num_rows}" + (" per channel" if self.per_channel else "")

    @property
    def bytes(self) -> int:
        n, k = self.shape
        return n * k + self.num_rows * (k + 2 * n)

    @property
    def flops(self) -> int:
        n, k = self.shape
        return 2 * self.num_rows * n * k

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        from kernels.linear_fp8 import linear_fp8

        n, k = self.shape
        activation = quantized(torch.randn(self.num_rows, k, device=device).bfloat16())
        weights = [
            Fp8Weight.quantize(torch.randn(n, k, device=device), per_channel=self.per_channel)
            for _ in range(max(L2_BYTES // (n * k), 3))
        ]
        out = torch.empty(self.num_rows, n, dtype=torch.bfloat16, device=device)
        turn = cycle(weights)

        def run() -> None:
            linear_fp8(activation, next(turn), out)

        def check() -> None:
            out.fill_(float("nan"))
            projection = linear_fp8(activation, weights[0], out)
            scale_T = projection.scale_T
            got = out.double() if scale_T is None else out.double() * scale_T.double()[:, None]
            case = Case(self.num_rows, k, n, self.per_channel)
            expected = case.expected(activation, weights[0])
            off = (got - expected).norm() / expected.norm()
            assert off <= 4e-3, f"off by {off}"

        return run, check


BENCHES = [
    Bench(layer, num_rows, per_channel)
    for layer in ("qkv", "o", "gate_up", "down")
    for per_channel in (False, True)
    for num_rows in (1, 16, 32, 64, 128, 256)
]
