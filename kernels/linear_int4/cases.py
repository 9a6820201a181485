"""Builds inputs for the tests and benchmarks of the 4-bit linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from kernels.activation import Activation, quantize_rows
from kernels.linear_int4.weight import GROUP, Int4Weight

L2_BYTES = 256 << 20
"""Several times what caches hold."""


def activation(x_TK: Tensor) -> Activation:
    """Rows as they are, and with scales as rms_norm and silu_mul leave them."""
    values = torch.empty(x_TK.shape, dtype=torch.float8_e4m3fn, device=x_TK.device)
    scale_T = torch.empty(len(x_TK), device=x_TK.device)
    quantize_rows(x_TK, values, scale_T)
    return Activation(x_TK, values, scale_T)


@dataclass(frozen=True)
class Case:
    num_rows: int
    in_features: int
    out_features: int
    for_fp8: bool = False
    with_zeros: bool = False
    half: bool = False
    """Scales in fp16, not bf16."""
    with_bias: bool = False
    with_order: bool = False

    def weight(self, device: str | torch.device = "cpu", lowest: int = 0) -> Int4Weight:
        """Random codes from `lowest` up; scales of very different size."""
        generator = torch.Generator().manual_seed(self.in_features + self.out_features)
        shape = (self.out_features, -(-self.in_features // GROUP))
        codes = torch.randint(lowest, 16, (self.out_features, self.in_features), generator=generator)
        scale = torch.rand(shape, generator=generator) * 0.01 + 0.001
        scale *= torch.randint(0, 2, shape, generator=generator) * 2 - 1
        zeros = torch.randint(0, 17, shape, generator=generator) if self.with_zeros else None
        bias = torch.randn(self.out_features, generator=generator) if self.with_bias else None
        order = torch.randperm(self.in_features, generator=generator) if self.with_order else None
        made: list[Tensor | None] = [
            None if tensor is None else tensor.to(device)
            for tensor in (
                codes.to(torch.uint8),
                scale.to(torch.float16 if self.half else torch.bfloat16),
                zeros,
                bias,
                order,
            )
        ]
        assert made[0] is not None
        assert made[1] is not None
        return Int4Weight.from_codes(made[0], made[1], made[2], made[3], made[4], for_fp8=self.for_fp8)

    def rows(self, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Activation:
        """Rows of very different size; the second is zero throughout where there is one."""
        generator = torch.Generator().manual_seed(self.num_rows)
        x = torch.randn(self.num_rows, self.in_features, generator=generator)
        x *= 10.0 ** torch.randint(-3, 3, (self.num_rows, 1), generator=generator)
        x[1:2] = 0
        return activation(x.to(device, dtype))


def expected(rows: Activation, weight: Int4Weight) -> Tensor:
    """In double precision, from the unpacked codes."""
    assert rows.x_TK is not None
    x = rows.x_TK.double()
    if weight.for_fp8:
        assert rows.quantized_TK is not None
        assert rows.scale_T is not None
        x = rows.quantized_TK.double() * rows.scale_T.double()[:, None]
    if weight.order_K is not None:
        x = x[:, weight.order_K]
    product = x @ weight.dequantize().double().t()
    return product if weight.bias_N is None else product + weight.bias_N.double()


CASES = [
    Case(1, 128, 64),
    Case(3, 100, 33, with_bias=True, with_zeros=True),
    Case(17, 384, 160, with_order=True, half=True),
    Case(1, 256, 48, for_fp8=True),
    Case(3, 100, 33, for_fp8=True, with_bias=True, with_order=True),
    Case(17, 640, 160, for_fp8=True, with_zeros=True, half=True),
]
"""Small: the interpreter runs them."""

DEVICE_CASES = [
    Case(rows, in_features, out_features, for_fp8, with_zeros, half=with_zeros)
    for rows, in_features, out_features in (
        # every kind of tile; channels and inputs that end within one
        (1, 4096, 6144),
        (16, 4096, 28672),
        (24, 4096, 28672),
        (32, 14336, 4096),
        (64, 4096, 28672),
        (100, 4096, 6144),
        (256, 640, 264),
    )
    for for_fp8 in (False, True)
    for with_zeros in (False, True)
]


@dataclass(frozen=True)
class Bench:
    """One product of the 8B shape, weights rotated through more memory than caches hold."""

    group: str
    num_rows: int
    in_features: int
    out_features: int
    for_fp8: bool

    @property
    def name(self) -> str:
        return f"{self.group} T={self.num_rows} {'W4A8' if self.for_fp8 else 'W4A16'}"

    @property
    def precision(self) -> str:
        return "fp8" if self.for_fp8 else "bf16"

    @property
    def bytes(self) -> int:
        weight = self.out_features * self.in_features // 2 + 2 * self.out_features * self.in_features // GROUP
        x = self.num_rows * (self.in_features + 4 if self.for_fp8 else 2 * self.in_features)
        return weight + x + 2 * self.num_rows * self.out_features

    @property
    def flops(self) -> int:
        return 2 * self.num_rows * self.in_features * self.out_features

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        from kernels.linear_int4 import linear_int4

        case = Case(self.num_rows, self.in_features, self.out_features, self.for_fp8)
        rows = case.rows(device, torch.bfloat16)
        first = case.weight(device, lowest=1)
        copies = [first, *(_another(first) for _ in range(-(-L2_BYTES // first.num_bytes)))]
        weights = cycle(copies)
        out = torch.full((self.num_rows, self.out_features), float("nan"), device=device).bfloat16()

        def check() -> None:
            wanted = expected(rows, first)
            got = linear_int4(rows, first, out).double()
            assert (got - wanted).norm() <= 6e-3 * wanted.norm()

        return lambda: void(linear_int4(rows, next(weights), out)), check


def void(_: Tensor) -> None:
    """Runs a function and drops its result."""


def _another(weight: Int4Weight) -> Int4Weight:
    """The same in other memory."""
    from dataclasses import replace

    return replace(
        weight, words=weight.words.clone(), scales=weight.scales.clone(), arrivals=weight.arrivals.clone()
    )


BENCHES = [
    Bench(group, rows, in_features, out_features, for_fp8)
    for group, in_features, out_features in (
        ("qkv", 4096, 6144),
        ("o", 4096, 4096),
        ("gate_up", 4096, 28672),
        ("down", 14336, 4096),
    )
    for rows in (1, 8, 16, 32, 64, 128, 256, 2048)
    for for_fp8 in (True, False)
]
