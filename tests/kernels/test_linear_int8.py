"""The int8 linear: FBGEMM's path against exact integer sums, and rows that know nothing of each other."""

import pytest
import torch

from kernels.linear_int8 import Int8Weight, linear_int8
from kernels.linear_int8.cases import CASES, Case


def run(x: torch.Tensor, weight: Int8Weight) -> torch.Tensor:
    return linear_int8(x, weight, torch.full((len(x), weight.out_features), float("nan")))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fbgemm_matches_exact_integer_sums(case: Case) -> None:
    x, weight, bias = case.inputs()
    packed = Int8Weight.quantize(weight, bias, pack=True)
    exact = Int8Weight.quantize(weight, bias, pack=False)
    assert packed.packed is not None
    assert packed.values_NK is None
    got, expected = run(x, packed), run(x, exact)
    # A value on the edge between two integers may round either way: one step of one product.
    step = x.abs().amax(1, keepdim=True) / 63 * weight.abs().amax()
    assert ((got - expected).abs() <= 1.01 * step + 1e-5).all()
    assert (got - expected).abs().mean() <= 0.01 * step.mean() + 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_stays_near_the_unquantised_product(case: Case) -> None:
    x, weight, bias = case.inputs()
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    plain = expected if bias is None else expected - bias
    error = (run(x, Int8Weight.quantize(weight, bias)) - expected).norm(dim=1) / plain.norm(dim=1)
    assert error.max() < 0.03  # each row has its own scale, so small rows are as exact as large ones


def test_no_sum_saturates() -> None:
    """Every product at its largest: with 8-bit activations pairs would pass 32 767 and be cut."""
    x = torch.ones(4, 512)
    x[:, 1::2] = 0.99
    weight = torch.ones(16, 512)
    expected = x @ weight.t()
    got = run(x, Int8Weight.quantize(weight))
    torch.testing.assert_close(got, expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 16, 33])
def test_a_row_has_the_same_bits_in_any_batch(num_rows: int) -> None:
    x, weight, bias = Case(64, 256, 512, with_bias=True).inputs()
    quantized = Int8Weight.quantize(weight, bias)
    whole = run(x, quantized)
    for first in (0, 5, 64 - num_rows):
        assert torch.equal(
            run(x[first : first + num_rows].clone(), quantized), whole[first : first + num_rows]
        )


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_a_wild_row_stays_alone(poison: float, pack: bool) -> None:
    x, weight, _ = Case(6, 64, 32).inputs()
    quantized = Int8Weight.quantize(weight, pack=pack)
    clean = run(x, quantized)
    x[2, 7] = poison
    spoiled = run(x, quantized)
    assert spoiled[2].isfinite().any() == (poison == 3e38)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(spoiled[others], clean[others])


@pytest.mark.parametrize("pack", [True, False])
def test_a_row_of_zeros_gives_the_bias(pack: bool) -> None:
    _, weight, bias = Case(6, 64, 32, with_bias=True).inputs()
    got = run(torch.zeros(4, 64), Int8Weight.quantize(weight, bias, pack=pack))
    assert torch.equal(got, bias.expand(4, -1))


def test_a_channel_of_zeros_stays_zero() -> None:
    weight = torch.randn(4, 8)
    weight[1] = 0
    got = run(torch.randn(5, 8), Int8Weight.quantize(weight))
    assert torch.equal(got[:, 1], torch.zeros(5))


def test_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Int8Weight.quantize(torch.tensor([[1.0, float("nan")]]))
    weight = Int8Weight.quantize(torch.randn(4, 8))
    with pytest.raises(ValueError, match="linear_int8"):
        linear_int8(torch.zeros(2, 7), weight, torch.empty(2, 4))
