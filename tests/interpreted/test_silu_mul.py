"""The kernel of SiLU-and-multiply under the interpreter, against the formula in double precision."""

import pytest
import torch

from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import CASES, SCALED_CASES, Case, ScaledCase
from tests.kernels.silu_mul_rows import run_case, run_scaled_case

# What a GPU does without a word: e^-g of a large negative g is infinite, and g / (1 + infinity) zero.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
SMALL = [case for case in CASES if case.num_rows * case.inner <= 32 * 704]


@pytest.mark.parametrize("case", [*SMALL, Case(2, 5000)], ids=str)
def test_matches_the_formula(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    run_scaled_case(case)


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
