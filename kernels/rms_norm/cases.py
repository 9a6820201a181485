"""Builds inputs for the tests and benchmarks of RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from kernels.activation import AdapterDelta
from kernels.delta_cases import adapter_delta, added

E4M3 = torch.float8_e4m3fn
L2_BYTES = 256 << 20
"""Several times what caches hold."""


@dataclass(frozen=True)
class Case:
    num_rows: int
    hidden: int
    with_residual: bool
    with_delta: bool = False

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> dict[str, Tensor | None]:
        generator = torch.Generator().manual_seed(self.num_rows * 7919 + self.hidden)
        x = torch.randn(self.num_rows, self.hidden, generator=generator)
        weight = torch.randn(self.hidden, generator=generator)
        residual = torch.randn(self.num_rows, self.hidden, generator=generator)
        return {
            "x": x.to(device, dtype),
            "weight": weight.to(device, dtype),
            "residual": residual.to(device, dtype) if self.with_residual else None,
        }

    def delta(self, device: str = "cpu") -> AdapterDelta | None:
        return adapter_delta(self.num_rows, self.hidden, device) if self.with_delta else None

    def expected(self, inputs: dict[str, Tensor | None], eps: float) -> tuple[Tensor, Tensor]:
        """(norm, residual) in double precision."""
        x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
        assert x is not None
        assert weight is not None
        summed = x.double() + added(self.delta()) + (0.0 if residual is None else residual.double())
        return summed / (summed.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double(), summed


CASES = [
    Case(rows, hidden, residual)
    for rows, hidden in ((1, 256), (32, 256), (3, 100), (128, 4096))
    for residual in (False, True)
] + [Case(5, 256, residual, with_delta=True) for residual in (False, True)]


@dataclass(frozen=True)
class ScaledCase:
    """Between two FP8 products: x comes divided by its row scales, the norm leaves quantised."""

    num_rows: int
    hidden: int
    with_residual: bool = True
    with_scale: bool = True
    with_out: bool = True
    with_delta: bool = False

    def inputs(
        self, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> dict[str, Any]:
        """Rows of very different size; the second is zero throughout where there is one."""
        generator = torch.Generator().manual_seed(self.num_rows * 31 + self.hidden)
        size = 10.0 ** torch.randint(-3, 4, (self.num_rows, 1), generator=generator)
        x = torch.randn(self.num_rows, self.hidden, generator=generator) * size
        residual = torch.randn(self.num_rows, self.hidden, generator=generator)
        for rows in (x, residual):
            rows[1:2] = 0
        rows_of = {"x": x, "weight": torch.randn(self.hidden, generator=generator)}
        if self.with_residual:
            rows_of["residual"] = residual
        inputs: dict[str, Any] = {name: rows.to(device, dtype) for name, rows in rows_of.items()}
        if self.with_scale:
            inputs["scale_T"] = torch.rand(self.num_rows, generator=generator).to(device) + 0.01
        if self.with_delta:
            inputs["delta"] = adapter_delta(self.num_rows, self.hidden, device)
        return inputs

    def outputs(self, inputs: dict[str, Any]) -> dict[str, Tensor | None]:
        """Memory full of NaN."""
        x = inputs["x"]
        out = torch.full_like(x, float("nan"))
        return {
            "out": out if self.with_out else None,
            "quantized": out.to(E4M3),
            "quantized_scale_T": torch.full((len(x),), float("nan"), device=x.device),
        }

    def expected(self, inputs: dict[str, Any], eps: float) -> tuple[Tensor, Tensor]:
        """(norm, residual) in double precision."""
        wide = {name: rows.double() for name, rows in inputs.items() if name != "delta"}
        x = wide["x"] * wide["scale_T"][:, None] if self.with_scale else wide["x"]
        x = x + added(inputs.get("delta"))
        summed = x + wide["residual"] if self.with_residual else x
        # What the next norm finds is what was stored.
        stored = summed.to(inputs["x"].dtype).double() if self.with_residual else summed
        normed = stored / (stored.square().mean(-1, keepdim=True) + eps).sqrt() * wide["weight"]
        return normed, summed


SCALED_CASES = [
    ScaledCase(1, 256),
    ScaledCase(5, 100),
    ScaledCase(4, 320, with_out=False),
    ScaledCase(3, 256, with_residual=False, with_scale=False),
    ScaledCase(3, 96, with_scale=False),
    ScaledCase(2, 1000, with_residual=False, with_out=False),
    ScaledCase(5, 256, with_delta=True),
    ScaledCase(4, 100, with_scale=False, with_out=False, with_delta=True),
    ScaledCase(3, 320, with_residual=False, with_delta=True),
]


@dataclass(frozen=True)
class Bench:
    """The norm before an FP8 product, in the 8B shape."""

    num_rows: int
    with_out: bool
    hidden: int = 4096
    flops: int = 0

    @property
    def name(self) -> str:
        return f"T={self.num_rows} H={self.hidden} quantised" + (", kept" if self.with_out else "")

    @property
    def bytes(self) -> int:
        # x, residual in and out, e4m3 out; bf16 out where adapters read it.
        return self.num_rows * (self.hidden * (2 + 4 + 1 + 2 * self.with_out) + 8) + 2 * self.hidden

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        from kernels.rms_norm import rms_norm
        from kernels.rms_norm.reference import rms_norm_reference

        case = ScaledCase(self.num_rows, self.hidden, with_out=self.with_out)
        copies = min(max(L2_BYTES // self.bytes, 2), 64)
        sets = []
        for _ in range(copies):
            inputs = case.inputs(torch.bfloat16, device)
            sets.append((inputs, case.outputs(inputs)))
        turn = cycle(sets)

        def run() -> None:
            inputs, outputs = next(turn)
            rms_norm(eps=1e-5, **inputs, **outputs)

        def check() -> None:
            results = []
            for op in (rms_norm, rms_norm_reference):
                inputs = case.inputs(torch.bfloat16, device)
                outputs = case.outputs(inputs)
                op(eps=1e-5, **inputs, **outputs)
                results.append((inputs["residual"], outputs["quantized"], outputs["quantized_scale_T"]))
            for got, expected in zip(*results, strict=True):
                off = (got.double() - expected.double()).norm()
                assert off <= 2e-3 * expected.double().norm(), f"off by {off}"

        return run, check


BENCHES = [Bench(rows, with_out) for rows in (1, 32, 256, 8192) for with_out in (False, True)]
