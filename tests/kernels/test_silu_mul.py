"""SwiGLU's gate against its formula in double precision."""

import pytest
import torch

from kernels.delta_cases import adapter_delta
from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import CASES, SCALED_CASES, Case, ScaledCase
from tests.kernels.silu_mul_rows import run_case, run_scaled_case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_formula(case: Case) -> None:
    run_case(case)


def test_refuses_an_output_of_another_shape() -> None:
    with pytest.raises(ValueError, match="silu_mul"):
        silu_mul(torch.zeros(2, 8), torch.zeros(2, 8))


def test_refuses_a_delta_of_another_shape() -> None:
    with pytest.raises(ValueError, match="silu_mul: delta"):
        silu_mul(torch.zeros(2, 16), torch.zeros(2, 8), delta=adapter_delta(2, 8))


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_scaled_rows_in_and_out(case: ScaledCase) -> None:
    run_scaled_case(case)


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
