"""The 4-bit linear: packing both ways, rounding against what it should cost, the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels.activation import Activation
from kernels.linear_int4 import Int4Weight, linear_int4
from kernels.linear_int4.cases import CASES, Case, activation, expected
from kernels.linear_int4.rounding import round_to_codes


def relative_error(weight: torch.Tensor, **options: bool) -> float:
    rounded = Int4Weight.quantize(weight, **options).dequantize()
    return float((rounded - weight).norm() / weight.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_matches_exact_sums(case: Case) -> None:
    rows, weight = case.rows(), case.weight()
    got = linear_int4(rows, weight, torch.full((case.num_rows, case.out_features), float("nan")))
    wanted = expected(rows, weight)
    assert got.isfinite().all()
    assert ((got - wanted).norm(dim=1) <= 1e-5 * wanted.norm(dim=1) + 1e-30).all()


@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("lowest", [0, 1])
@pytest.mark.parametrize("shape", [(48, 100), (128, 256), (300, 640)])
def test_codes_come_back(shape: tuple[int, int], lowest: int, for_fp8: bool) -> None:
    codes = torch.randint(lowest, 16, shape, dtype=torch.uint8)
    codes[0, :16] = torch.arange(16).clamp_min(lowest)
    scale = torch.rand(shape[0], -(-shape[1] // 128)).to(torch.bfloat16) + 0.5
    weight = Int4Weight.from_codes(codes, scale, for_fp8=for_fp8)
    assert weight.signed == (for_fp8 and lowest == 1)
    assert torch.equal(weight.codes(), codes)
    wide = scale.float().repeat_interleave(128, 1)[:, : shape[1]]
    assert torch.equal(weight.dequantize(), (codes.float() - 8) * wide)


@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_and_zero_points_are_kept_exactly(dtype: torch.dtype, for_fp8: bool) -> None:
    codes = torch.randint(0, 16, (130, 384), dtype=torch.uint8)
    scale = (torch.randn(130, 3) * 0.01).to(dtype)
    zeros = torch.arange(390).view(130, 3) % 17
    weight = Int4Weight.from_codes(codes, scale, zeros, for_fp8=for_fp8)
    assert weight.zeros is not None
    by_input = [value.repeat_interleave(128, 1) for value in (zeros.float(), scale.float())]
    assert torch.equal(weight.dequantize(), (codes.float() - by_input[0]) * by_input[1])


def test_zero_points_of_eight_need_no_room() -> None:
    codes, scale = torch.ones(4, 128, dtype=torch.uint8), torch.ones(4, 1).bfloat16()
    assert Int4Weight.from_codes(codes, scale, torch.full((4, 1), 8)).zeros is None


def test_rounding_is_near_what_four_bits_can_do() -> None:
    """Normal numbers: 16 levels of a best uniform quantiser have a relative error of 0.107; scales per 128
    do better, plain rounding to the largest magnitude does worse."""
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    absmax = weight.view(256, 4, 128).abs().amax(-1, keepdim=True) / 7
    plain = (torch.round(weight.view(256, 4, 128) / absmax) * absmax).view(256, 512)
    plain_error = float((plain - weight).norm() / weight.norm())
    assert relative_error(weight) < 0.098 < plain_error
    assert relative_error(weight, symmetric=False) < 0.098
    assert 0.098 < relative_error(weight, for_fp8=True) < 0.108 < plain_error


def test_zero_points_help_lopsided_groups() -> None:
    weight = torch.rand(64, 256) + 0.5
    assert relative_error(weight, symmetric=False) < 0.6 * relative_error(weight)


def test_balanced_codes_reach_seven_to_both_sides() -> None:
    weight = torch.randn(32, 256)
    weight[0, 0] = -100.0
    codes, _, zeros = round_to_codes(weight, symmetric=True, balanced=True)
    assert zeros is None
    assert codes.min() >= 1
    assert Int4Weight.quantize(weight, for_fp8=True).signed
    assert round_to_codes(weight, symmetric=True)[0].min() == 0


@pytest.mark.parametrize("for_fp8", [False, True])
def test_a_group_of_zeros_stays_zero(for_fp8: bool) -> None:
    weight = torch.randn(4, 256)
    weight[1, 128:] = 0
    weight[2] = 0
    back = Int4Weight.quantize(weight, for_fp8=for_fp8).dequantize()
    assert torch.equal(back[2], torch.zeros(256))
    assert torch.equal(back[1, 128:], torch.zeros(128))
    assert back[1, :128].any()


@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_wild_row_stays_alone(poison: float, for_fp8: bool) -> None:
    case = Case(6, 256, 64, for_fp8=for_fp8)
    weight, clean = case.weight(), case.rows()
    assert clean.x_TK is not None
    x = clean.x_TK.clone()
    x[3, 5] = poison
    first, second = (linear_int4(rows, weight, torch.empty(6, 64)) for rows in (clean, activation(x)))
    assert not second[3].isfinite().any()
    others = [0, 1, 2, 4, 5]
    assert torch.equal(first[others], second[others])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codes_NK": torch.full((4, 128), 16, dtype=torch.uint8)}, "0 to 15"),
        ({"codes_NK": torch.zeros(4, 128, dtype=torch.int32)}, "uint8"),
        ({"scale_NG": torch.ones(4, 2).bfloat16()}, "scales"),
        ({"scale_NG": torch.ones(4, 1)}, "float32"),
        ({"scale_NG": torch.full((4, 1), float("inf")).bfloat16()}, "not finite"),
        ({"zero_NG": torch.full((4, 1), 17)}, "zero points"),
        ({"zero_NG": torch.full((4, 1), -1)}, "zero points"),
        ({"zero_NG": torch.full((1, 4), 3)}, "zero points"),
    ],
)
def test_refuses_codes_it_cannot_hold(change: dict[str, torch.Tensor], message: str) -> None:
    fields = {"codes_NK": torch.zeros(4, 128, dtype=torch.uint8), "scale_NG": torch.ones(4, 1).bfloat16()}
    Int4Weight.from_codes(**fields)
    with pytest.raises(ValueError, match=message):
        Int4Weight.from_codes(**(fields | change))


def test_refuses_weights_and_rows_it_cannot_take() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Int4Weight.quantize(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="group_size 64"):
        Int4Weight.quantize(torch.randn(4, 128), group_size=64)
    weight = Int4Weight.quantize(torch.randn(4, 128))
    with pytest.raises(ValueError, match="linear_int4: x"):
        linear_int4(torch.zeros(2, 127), weight, torch.empty(2, 4))
    with pytest.raises(ValueError, match="contiguous"):
        linear_int4(torch.zeros(128, 2).t(), weight, torch.empty(2, 4))
    with pytest.raises(ValueError, match="contiguous"):
        linear_int4(torch.zeros(2, 128), weight, torch.empty(4, 2).t())
    with pytest.raises(ValueError, match="packed for plain"):
        linear_int4(dataclasses.replace(activation(torch.ones(2, 128)), x_TK=None), weight, torch.empty(2, 4))
    packed = Int4Weight.quantize(torch.randn(4, 128), for_fp8=True)
    with pytest.raises(ValueError, match="packed for FP8"):
        linear_int4(Activation(torch.ones(2, 128)), packed, torch.empty(2, 4))
