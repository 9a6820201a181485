"""The kernel of SiLU-and-multiply under the interpreter, against the formula in double precision."""

import pytest
import torch

from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import CASES, LOW_RANK_CASES, SCALED_CASES, Case, LowRankCase, ScaledCase

# What a GPU does without a word: e^-g of a large negative g is infinite, and g / (1 + infinity) zero.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
SMALL = [case for case in CASES if case.num_rows * case.inner <= 32 * 704]
HALF_STEP = 1.01 * 2.0**-4
"""e4m3 has three bits after the first; below its normal numbers steps are 2^-9."""


@pytest.mark.parametrize("case", [*SMALL, Case(2, 5000)], ids=str)
def test_matches_the_formula(case: Case) -> None:
    gate_up = case.inputs()
    gate, up = gate_up.double().chunk(2, -1)
    out = torch.full((case.num_rows, case.inner), float("nan"))
    silu_mul(gate_up, out)
    torch.testing.assert_close(out.double(), gate / (1 + torch.exp(-gate)) * up, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    inputs = case.inputs()
    expected, outputs = case.expected(inputs), case.outputs(inputs)
    silu_mul(**inputs, **outputs)
    if case.with_out:
        torch.testing.assert_close(outputs["out_TF"].double(), expected, rtol=1e-5, atol=1e-6)
    scale = outputs["quantized_scale_T"].double()
    largest = (expected.abs().amax(1) / 448).clamp_min(2.0**-126)
    torch.testing.assert_close(scale, largest, rtol=1e-5, atol=0)
    got = outputs["quantized"].double() * scale[:, None]
    assert ((got - expected).abs() <= HALF_STEP * expected.abs() + 2.0**-10 * scale[:, None]).all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_wild_row_stays_alone(poison: float) -> None:
    case = ScaledCase(4, 100)
    inputs, spoiled = case.inputs(), case.inputs()
    spoiled["gate_up_T2F"][2, 7] = poison
    results = []
    for given in (inputs, spoiled):
        outputs = case.outputs(given)
        silu_mul(**given, **outputs)
        results.append(outputs)
    others = [0, 1, 3]
    for name in ("out_TF", "quantized_scale_T"):
        assert torch.equal(results[0][name][others], results[1][name][others])
    bits = [outputs["quantized"].view(torch.uint8)[others] for outputs in results]
    assert torch.equal(*bits)


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
