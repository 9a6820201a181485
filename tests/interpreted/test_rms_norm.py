"""The kernel of RMSNorm under the interpreter, against the formula in double precision."""

import pytest
import torch

from kernels.delta_cases import split
from kernels.rms_norm import rms_norm
from kernels.rms_norm.cases import CASES, SCALED_CASES, Case, ScaledCase

SMALL = [case for case in CASES if case.hidden <= 256]
HALF_STEP = 1.01 * 2.0**-4
"""e4m3 has three bits after the first; below its normal numbers steps are 2^-9."""


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_matches_the_formula(case: Case) -> None:
    inputs = case.inputs()
    x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
    expected, summed = case.expected(inputs, 1e-5)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-5, out, residual, delta=case.delta())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    if residual is not None:
        torch.testing.assert_close(residual.double(), summed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    inputs = case.inputs()
    expected, summed = case.expected(inputs, 1e-5)
    outputs = case.outputs(inputs)
    rms_norm(eps=1e-5, **inputs, **outputs)
    if case.with_residual:
        torch.testing.assert_close(inputs["residual"].double(), summed, rtol=1e-5, atol=1e-5)
    if case.with_out:
        torch.testing.assert_close(outputs["out"].double(), expected, rtol=1e-5, atol=1e-5)
    scale = outputs["quantized_scale_T"].double()
    largest = (expected.abs().amax(1) / 448).clamp_min(2.0**-126)
    torch.testing.assert_close(scale, largest, rtol=1e-5, atol=0)
    got = outputs["quantized"].double() * scale[:, None]
    assert ((got - expected).abs() <= HALF_STEP * expected.abs() + 2.0**-10 * scale[:, None]).all()


@pytest.mark.parametrize("case", [case for case in CASES if case.hidden == 256], ids=str)
@pytest.mark.parametrize("num_parts", [1, 3])
def test_reads_parts(case: Case, num_parts: int) -> None:
    inputs = case.inputs()
    x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
    expected, summed = case.expected(inputs, 1e-5)
    parts = split(x, num_parts)
    x.fill_(float("nan"))
    rms_norm(x, weight, 1e-5, x, residual, delta=case.delta(), parts=parts)
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)
    if residual is not None:
        torch.testing.assert_close(residual.double(), summed, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="parts"):
        rms_norm(x, weight, 1e-5, x, residual, parts=parts[:, :, :-1])


def test_strided_heads_in_place() -> None:
    fused = torch.randn(5, 3 * 48)
    heads = fused.unflatten(1, (3, 48))[:, :2]
    weight = torch.randn(48)
    expected = torch.nn.functional.rms_norm(heads, (48,), weight, 1e-6)
    untouched = fused[:, 96:].clone()
    rms_norm(heads, weight, 1e-6, heads)
    torch.testing.assert_close(heads, expected)
    assert torch.equal(fused[:, 96:], untouched)


def test_a_row_of_nan_stays_alone() -> None:
    case = ScaledCase(4, 100)
    inputs, spoiled = case.inputs(), case.inputs()
    spoiled["x"][2, 7] = float("nan")
    results = []
    for given in (inputs, spoiled):
        outputs = case.outputs(given)
        rms_norm(eps=1e-6, **given, **outputs)
        results.append(outputs)
    others = [0, 1, 3]
    for name in ("out", "quantized_scale_T"):
        assert torch.equal(results[0][name][others], results[1][name][others])
    bits = [outputs["quantized"].view(torch.uint8)[others] for outputs in results]
    assert torch.equal(*bits)
    assert results[1]["out"][2].isnan().all()
