"""One run of a case of SiLU-and-multiply on a CPU, kernel or reference, against double precision."""

from __future__ import annotations

import torch

from kernels.delta_cases import added
from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import Case, ScaledCase

HALF_STEP = 1.01 * 2.0**-4
"""e4m3 has three bits after the first; below its normal numbers steps are 2^-9."""


def run_case(case: Case) -> None:
    """Near the formula."""
    gate_up = case.inputs()
    gate, up = (gate_up.double() + added(case.delta())).chunk(2, -1)
    out = torch.full((case.num_rows, case.inner), float("nan"))
    silu_mul(gate_up, out, delta=case.delta())
    torch.testing.assert_close(out.double(), gate / (1 + torch.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


def run_scaled_case(case: ScaledCase) -> None:
    """Near the formula, and quantised by the scale of its largest value."""
    inputs = case.inputs()
    expected, outputs = case.expected(inputs), case.outputs(inputs)
    assert silu_mul(**inputs, **outputs) is outputs["out_TF"]
    if case.with_out:
        torch.testing.assert_close(outputs["out_TF"].double(), expected, rtol=1e-5, atol=1e-6)
    _check_quantized(outputs, expected)


def _check_quantized(outputs: dict[str, torch.Tensor | None], expected: torch.Tensor) -> None:
    quantized, scale_T = outputs["quantized"], outputs["quantized_scale_T"]
    assert quantized is not None
    assert scale_T is not None
    scale = scale_T.double()
    largest = (expected.abs().amax(1) / 448).clamp_min(2.0**-126)
    torch.testing.assert_close(scale, largest, rtol=1e-5, atol=0)
    got = quantized.double() * scale[:, None]
    assert ((got - expected).abs() <= HALF_STEP * expected.abs() + 2.0**-10 * scale[:, None]).all()
