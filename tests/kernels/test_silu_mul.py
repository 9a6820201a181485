"""SwiGLU's gate against its formula in double precision."""

import pytest
import torch

from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import CASES, LOW_RANK_CASES, SCALED_CASES, Case, LowRankCase, ScaledCase


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_formula(case: Case) -> None:
    gate_up = case.inputs()
    gate, up = gate_up.double().chunk(2, -1)
    out = torch.full((case.num_rows, case.inner), float("nan"))
    silu_mul(gate_up, out)
    torch.testing.assert_close(out.double(), gate / (1 + torch.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


def test_refuses_an_output_of_another_shape() -> None:
    with pytest.raises(ValueError, match="silu_mul"):
        silu_mul(torch.zeros(2, 8), torch.zeros(2, 8))


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    inputs = case.inputs()
    expected, outputs = case.expected(inputs), case.outputs(inputs)
    assert silu_mul(**inputs, **outputs) is outputs["out_TF"]
    if case.with_out:
        torch.testing.assert_close(outputs["out_TF"].double(), expected, rtol=1e-5, atol=1e-6)
    scale = outputs["quantized_scale_T"].double()
    largest = (expected.abs().amax(1) / 448).clamp_min(2.0**-126)
    torch.testing.assert_close(scale, largest, rtol=1e-5, atol=0)
    got = outputs["quantized"].double() * scale[:, None]
    assert ((got - expected).abs() <= 1.01 * 2.0**-4 * expected.abs() + 2.0**-10 * scale[:, None]).all()


def test_one_tenants_row_never_moves_anothers() -> None:
    case = ScaledCase(6, 100)
    results = []
    for size in (1.0, 1e6, float("nan"), float("inf")):
        inputs = case.inputs()
        inputs["gate_up_T2F"][3] *= size
        outputs = case.outputs(inputs)
        silu_mul(**inputs, **outputs)
        kept = [0, 1, 2, 4, 5]
        quantized = outputs["quantized"].view(torch.uint8)[kept]
        results.append((quantized, outputs["quantized_scale_T"][kept], outputs["out_TF"][kept]))
    for other in results[1:]:
        assert all(torch.equal(*both) for both in zip(results[0], other, strict=True))


def test_refuses_half_of_a_quantised_output() -> None:
    gate_up, quantized = torch.zeros(2, 16), torch.empty(2, 8, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="go together"):
        silu_mul(gate_up, torch.empty(2, 8), quantized=quantized)
    with pytest.raises(ValueError, match="neither"):
        silu_mul(gate_up, None)
    with pytest.raises(ValueError, match="scale_T"):
        silu_mul(gate_up, torch.empty(2, 8), scale_T=torch.ones(3))
    with pytest.raises(ValueError, match="not contiguous"):
        silu_mul(gate_up, None, quantized=quantized.new_empty(2, 9)[:, :8], quantized_scale_T=torch.empty(2))


@pytest.mark.parametrize("case", LOW_RANK_CASES, ids=str)
def test_adds_what_adapters_add(case: LowRankCase) -> None:
    low_rank, inputs = case.low_rank(), case.scaled().inputs()
    outputs = case.scaled().outputs(inputs)
    if not case.quantizes:
        outputs = {"out_TF": outputs["out_TF"]}
    silu_mul(**inputs, **outputs, low_rank=low_rank)
    expected = case.expected(inputs, low_rank)
    assert outputs["out_TF"] is not None
    size = expected.abs().amax(1, keepdim=True).clamp_min(1e-3)
    assert ((outputs["out_TF"].double() - expected).abs() / size).max() < 1e-5
    if case.quantizes:
        scale = outputs["quantized_scale_T"].double()
        torch.testing.assert_close(
            scale, (expected.abs().amax(1) / 448).clamp_min(2.0**-126), rtol=1e-5, atol=0
        )
        got = outputs["quantized"].double() * scale[:, None]
        assert ((got - expected).abs() <= 1.01 * 2.0**-4 * expected.abs() + 2.0**-10 * scale[:, None]).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_wild_adapter_stays_in_its_rows(value: float) -> None:
    case = LOW_RANK_CASES[1]
    outs = []
    for spoil in (None, {3: value}):
        inputs = case.scaled().inputs()
        outputs = case.scaled().outputs(inputs)
        silu_mul(**inputs, **outputs, low_rank=case.low_rank(spoil=spoil))
        outs.append(outputs["out_TF"])
    mine = case.low_rank().slots_T == 3
    assert not outs[1][mine].isfinite().all(1).any()
    assert torch.equal(outs[0][~mine], outs[1][~mine])
