"""The kernels of the 4-bit linear under the interpreter, against exact sums; outputs start as NaN."""

import pytest
import torch

from kernels.linear_int4 import linear_int4
from kernels.linear_int4.cases import CASES, Case, expected
from kernels.linear_int4.kernel import Tiling, dequantize, launch


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.isfinite().all()
    off = (got.double() - wanted).norm(dim=1)
    assert (off <= 1e-6 * wanted.norm(dim=1) + 1e-30).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_exact_sums(case: Case) -> None:
    rows, weight = case.rows(), case.weight()
    out = torch.full((case.num_rows, case.out_features), float("nan"))
    assert_near(linear_int4(rows, weight, out), expected(rows, weight))


@pytest.mark.parametrize("for_fp8", [False, True])
def test_shares_of_the_inputs_are_added_up(for_fp8: bool) -> None:
    case = Case(5, 1100, 200, for_fp8=for_fp8, with_bias=True, half=True)
    rows, weight = case.rows(), case.weight(lowest=1)
    assert weight.signed == for_fp8
    x_TK, scale_T = (rows.quantized_TK, rows.scale_T) if for_fp8 else (rows.x_TK, None)
    for block_n in (64, 128):
        for splits in (1, 2, 4):
            out = torch.full((5, 200), float("nan"))
            launch(x_TK, scale_T, weight, out, Tiling(16, block_n, splits, 2, 4))
            assert_near(out, expected(rows, weight))
            assert not weight.arrivals.any()


@pytest.mark.parametrize("lowest", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_dequantizes(case: Case, lowest: int) -> None:
    weight = case.weight(lowest=lowest)
    out = torch.full((case.out_features, case.in_features), float("nan"))
    torch.testing.assert_close(dequantize(weight, out), weight.dequantize(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("for_fp8", [False, True])
def test_a_wild_row_stays_alone(for_fp8: bool) -> None:
    case = Case(6, 256, 64, for_fp8=for_fp8)
    weight, clean = case.weight(), case.rows()
    spoiled = case.rows()
    spoiled.x_TK[2, 7] = float("nan")
    spoiled.scale_T[2] = float("nan")  # the interpreter reads e4m3's NaN as 480
    first, second = (linear_int4(rows, weight, torch.empty(6, 64)) for rows in (clean, spoiled))
    assert second[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(first[others], second[others])
