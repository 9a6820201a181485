"""RMSNorm against its formula in double precision."""

from dataclasses import replace

import pytest
import torch

from kernels.delta_cases import adapter_delta
from kernels.rms_norm import rms_norm
from kernels.rms_norm.cases import CASES, SCALED_CASES, Case, ScaledCase
from kernels.rms_norm.reference import rms_norm_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_formula(case: Case) -> None:
    inputs = case.inputs()
    x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
    expected, summed = case.expected(inputs, 1e-5)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-5, out, residual, delta=case.delta())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    if residual is not None:
        torch.testing.assert_close(residual.double(), summed, rtol=1e-6, atol=1e-6)


def test_writes_over_its_own_strided_input() -> None:
    fused = torch.randn(5, 3 * 16)
    heads = fused.unflatten(1, (3, 16))[:, :2]
    expected = torch.nn.functional.rms_norm(heads, (16,), torch.ones(16), 1e-6)
    untouched = fused[:, 32:].clone()
    rms_norm(heads, torch.ones(16), 1e-6, heads)
    torch.testing.assert_close(heads, expected)
    assert torch.equal(fused[:, 32:], untouched)


def test_half_precision_is_computed_in_single() -> None:
    x = torch.full((1, 64), 300.0, dtype=torch.float16)  # 300^2 overflows fp16
    out = torch.full_like(x, float("nan"))
    rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6, out)
    torch.testing.assert_close(out, torch.ones_like(x))


def test_a_row_of_nan_stays_alone_and_rows_do_not_depend_on_the_batch() -> None:
    x = torch.randn(9, 100)
    weight = torch.randn(100)
    clean = rms_norm(x, weight, 1e-6, torch.full_like(x, float("nan")))
    x[4] = float("nan")
    spoiled = rms_norm(x, weight, 1e-6, torch.full_like(x, float("nan")))
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(spoiled[others], clean[others])
    alone = rms_norm(x[2:3].clone(), weight, 1e-6, torch.empty(1, 100))
    assert torch.equal(alone[0], clean[2])


def test_refuses_shapes_that_do_not_fit() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="weight"):
        rms_norm(x, torch.ones(4), 1e-6, torch.empty(2, 8))
    with pytest.raises(ValueError, match="residual"):
        rms_norm(x, torch.ones(8), 1e-6, torch.empty(2, 8), torch.zeros(1, 8))


def test_refuses_a_delta_that_does_not_fit() -> None:
    x, weight, fits = torch.zeros(2, 8), torch.ones(8), adapter_delta(2, 8)
    wrong = {
        "delta .* for rows": adapter_delta(3, 8),
        "not contiguous fp32": replace(fits, y_TN=fits.y_TN.double()),
        "with strides": replace(fits, y_TN=torch.zeros(8, 2).T),
        "has_adapter_T .* for 2 rows": replace(fits, has_adapter_T=fits.has_adapter_T[:1]),
        "torch.bool": replace(fits, has_adapter_T=fits.has_adapter_T.bool()),
    }
    for match, delta in wrong.items():
        with pytest.raises(ValueError, match=f"rms_norm: .*{match}"):
            rms_norm(x, weight, 1e-6, x, delta=delta)
    heads = torch.zeros(2, 3, 8)
    with pytest.raises(ValueError, match="delta"):
        rms_norm(heads, weight, 1e-6, heads, delta=replace(fits, y_TN=heads))


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    inputs = case.inputs()
    expected, summed = case.expected(inputs, 1e-5)
    outputs = case.outputs(inputs)
    assert rms_norm(eps=1e-5, **inputs, **outputs) is outputs["out"]
    if case.with_residual:
        torch.testing.assert_close(inputs["residual"].double(), summed, rtol=1e-5, atol=1e-5)
    if case.with_out:
        torch.testing.assert_close(outputs["out"].double(), expected, rtol=1e-5, atol=1e-5)
    scale = outputs["quantized_scale_T"].double()
    torch.testing.assert_close(scale, (expected.abs().amax(1) / 448).clamp_min(2.0**-126), rtol=1e-5, atol=0)
    got = outputs["quantized"].double() * scale[:, None]
    assert ((got - expected).abs() <= 1.01 * 2.0**-4 * expected.abs() + 2.0**-10 * scale[:, None]).all()


def test_one_tenants_row_never_moves_anothers() -> None:
    case = ScaledCase(6, 100)
    results = []
    for size in (1.0, 1e6, float("nan"), float("inf")):
        inputs = case.inputs()
        inputs["x"][3] *= size
        outputs = case.outputs(inputs)
        rms_norm(eps=1e-6, **inputs, **outputs)
        kept = [0, 1, 2, 4, 5]
        quantized = outputs["quantized"].view(torch.uint8)[kept]
        results.append((quantized, outputs["quantized_scale_T"][kept], outputs["out"][kept]))
    for other in results[1:]:
        assert all(torch.equal(*both) for both in zip(results[0], other, strict=True))


def test_quantised_rows_are_those_of_the_norm_that_is_kept() -> None:
    """With adapters the norm is written too; without, it is not: the base must see the same numbers."""
    bits = []
    for with_out in (True, False):
        case = ScaledCase(5, 320, with_out=with_out)
        inputs = case.inputs(torch.bfloat16)
        outputs = case.outputs(inputs)
        rms_norm_reference(eps=1e-5, **inputs, **outputs)
        bits.append((outputs["quantized"].view(torch.uint8), outputs["quantized_scale_T"]))
    assert all(torch.equal(*both) for both in zip(*bits, strict=True))


def test_refuses_half_of_a_quantised_output() -> None:
    x, weight = torch.zeros(2, 8), torch.ones(8)
    quantized = torch.empty(2, 8, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="go together"):
        rms_norm(x, weight, 1e-6, torch.empty(2, 8), quantized=quantized)
    with pytest.raises(ValueError, match="neither"):
        rms_norm(x, weight, 1e-6, None)
    with pytest.raises(ValueError, match="quantized_scale_T"):
        rms_norm(x, weight, 1e-6, None, quantized=quantized, quantized_scale_T=torch.empty(3))
    with pytest.raises(ValueError, match="not like x"):
        rms_norm(x, weight, 1e-6, None, quantized=quantized[:1], quantized_scale_T=torch.empty(2))
