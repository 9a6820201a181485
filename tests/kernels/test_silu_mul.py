"""SwiGLU's gate against its formula in double precision."""

import pytest
import torch

from kernels.silu_mul import silu_mul
from kernels.silu_mul.cases import CASES, Case


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
