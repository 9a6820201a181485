"""Builds inputs for the tests and benchmarks of SiLU-and-multiply."""

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
    inner: int
    with_delta: bool = False

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
        generator = torch.Generator().manual_seed(self.num_rows + self.inner)
        return torch.randn(self.num_rows, 2 * self.inner, generator=generator).to(device, dtype)

    def delta(self, device: str = "cpu") -> AdapterDelta | None:
        return adapter_delta(self.num_rows, 2 * self.inner, device) if self.with_delta else None


CASES = [Case(1, 704), Case(32, 704), Case(5, 50), Case(64, 14336), Case(5, 704, with_delta=True)]


@dataclass(frozen=True)
class ScaledCase:
    """Between two FP8 products: gate and up come divided by their row scales, the result leaves quantised."""

    num_rows: int
    inner: int
    with_scale: bool = True
    with_out: bool = True
    with_delta: bool = False

    def inputs(
        self, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> dict[str, Any]:
        """Rows of very different size; the second is zero throughout where there is one."""
        generator = torch.Generator().manual_seed(self.num_rows * 31 + self.inner)
        size = 10.0 ** torch.randint(-3, 3, (self.num_rows, 1), generator=generator)
        gate_up = torch.randn(self.num_rows, 2 * self.inner, generator=generator) * size
        gate_up[1:2] = 0
        inputs: dict[str, Any] = {"gate_up_T2F": gate_up.to(device, dtype)}
        if self.with_scale:
            inputs["scale_T"] = torch.rand(self.num_rows, generator=generator).to(device) + 0.01
        if self.with_delta:
            inputs["delta"] = adapter_delta(self.num_rows, 2 * self.inner, device)
        return inputs

    def outputs(self, inputs: dict[str, Any]) -> dict[str, Tensor | None]:
        """Memory full of NaN."""
        out = torch.full_like(inputs["gate_up_T2F"][:, : self.inner], float("nan")).contiguous()
        return {
            "out_TF": out if self.with_out else None,
            "quantized": out.to(E4M3),
            "quantized_scale_T": torch.full((len(out),), float("nan"), device=out.device),
        }

    def expected(self, inputs: dict[str, Any]) -> Tensor:
        """In double precision."""
        rows = inputs["gate_up_T2F"].double()
        if self.with_scale:
            rows = rows * inputs["scale_T"].double()[:, None]
        gate, up = (rows + added(inputs.get("delta"))).chunk(2, -1)
        return gate / (1 + torch.exp(-gate)) * up


SCALED_CASES = [
    ScaledCase(1, 256),
    ScaledCase(5, 50),
    ScaledCase(3, 700, with_out=False),
    ScaledCase(4, 100, with_scale=False),
    ScaledCase(5, 256, with_delta=True),
    ScaledCase(4, 50, with_scale=False, with_out=False, with_delta=True),
]


@dataclass(frozen=True)
class Bench:
    """Before the down projection, in the 8B shape."""

    num_rows: int
    with_out: bool
    inner: int = 14336
    flops: int = 0

    @property
    def name(self) -> str:
        return f"T={self.num_rows} F={self.inner} quantised" + (", kept" if self.with_out else "")

    @property
    def bytes(self) -> int:
        return self.num_rows * (self.inner * (4 + 1 + 2 * self.with_out) + 8)

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        from kernels.silu_mul import silu_mul
        from kernels.silu_mul.reference import silu_mul_reference

        case = ScaledCase(self.num_rows, self.inner, with_out=self.with_out)
        copies = min(max(L2_BYTES // self.bytes, 2), 64)
        sets = []
        for _ in range(copies):
            inputs = case.inputs(torch.bfloat16, device)
            sets.append((inputs, case.outputs(inputs)))
        turn = cycle(sets)

        def run() -> None:
            inputs, outputs = next(turn)
            silu_mul(**inputs, **outputs)

        def check() -> None:
            inputs = case.inputs(torch.bfloat16, device)
            results = []
            for op in (silu_mul, silu_mul_reference):
                outputs = case.outputs(inputs)
                op(**inputs, **outputs)
                results.append((outputs["quantized"], outputs["quantized_scale_T"]))
            for got, expected in zip(*results, strict=True):
                off = (got.double() - expected.double()).norm()
                assert off <= 2e-3 * expected.double().norm(), f"off by {off}"

        return run, check


BENCHES = [Bench(rows, with_out) for rows in (1, 32, 256, 8192) for with_out in (False, True)]
