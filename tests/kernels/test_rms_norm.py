"""RMSNorm against its formula in double precision."""

import pytest
import torch

from kernels.rms_norm import rms_norm
from kernels.rms_norm.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_formula(case: Case) -> None:
    inputs = case.inputs()
    x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
    summed = x.double() + (residual.double() if residual is not None else 0)
    expected = summed / (summed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-5, out, residual)
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
