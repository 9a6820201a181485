"""The FP8 linear on a CPU: its meaning, what checkpoints store, and rows that know nothing of each other."""

import pytest
import torch

from kernels.activation import Activation
from kernels.linear_fp8 import Fp8Weight, Product, linear_fp8, product
from kernels.linear_fp8.cases import CASES, Case, quantized
from kernels.linear_fp8.stream import even_programs, max_programs_per_tile, stream_cut

E4M3 = torch.float8_e4m3fn


def run(activation: Activation, weight: Fp8Weight) -> torch.Tensor:
    """True values."""
    out = torch.full((len(activation.x_TK), weight.out_features), float("nan"))
    projection = linear_fp8(activation, weight, out)
    assert projection.y_TN is out
    assert (projection.scale_T is None) == weight.per_channel
    return out if projection.scale_T is None else out * projection.scale_T[:, None]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_exact_sums(case: Case) -> None:
    activation, weight = case.inputs()
    assert product(case.num_rows, weight) is Product.REFERENCE
    expected = case.expected(activation, weight)
    assert ((run(activation, weight) - expected).norm(dim=1) <= 1e-5 * expected.norm(dim=1)).all()


@pytest.mark.parametrize("per_channel", [False, True])
def test_stays_near_the_unquantised_product(per_channel: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 512) * 10.0 ** torch.arange(-8, 8)[:, None]
    weight = torch.randn(96, 512) * 0.05
    expected = x.double() @ weight.double().t()
    got = run(quantized(x), Fp8Weight.quantize(weight, per_channel=per_channel))
    error = (got - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.max() < 0.05  # each row has its own scale, so small rows are as exact as large ones


def test_channels_of_very_different_size_want_their_own_scale() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 256) * 10.0 ** torch.randint(-6, 1, (64, 1))
    x = torch.randn(64, 256)
    expected = x.double() @ weight.double().t()
    errors = {}
    for per_channel in (False, True):
        got = run(quantized(x), Fp8Weight.quantize(weight, per_channel=per_channel))
        errors[per_channel] = ((got - expected).norm(dim=0) / expected.norm(dim=0)).max()
    assert errors[True] < 0.06
    assert errors[False] > 0.5


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_a_wild_row_stays_alone(poison: float) -> None:
    case = Case(6, 64, 32)
    activation, weight = case.inputs()
    clean = run(activation, weight)
    x = activation.x_TK.clone()
    x[2, 7] = poison
    spoiled = run(quantized(x), weight)
    assert torch.equal(spoiled[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])
    if poison != 3e38:
        assert not spoiled[2].isfinite().any()


def test_a_row_of_zeros_gives_the_bias() -> None:
    weight = Fp8Weight.quantize(torch.randn(32, 64), torch.randn(32))
    got = run(quantized(torch.zeros(3, 64)), weight)
    assert torch.equal(got, weight.bias_N.expand(3, -1))


def test_weights_of_zeros_stay_zero() -> None:
    for per_channel in (False, True):
        got = run(quantized(torch.randn(3, 16)), Fp8Weight.quantize(torch.zeros(8, 16), None, per_channel))
        assert torch.equal(got, torch.zeros(3, 8))


def stored(n: int, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 32).to(E4M3), scale


def test_layers_with_one_common_scale_stay_per_tensor() -> None:
    parts = [stored(8, torch.tensor(0.5)), stored(4, torch.tensor([0.5], dtype=torch.bfloat16))]
    weight = Fp8Weight.from_checkpoint(parts)
    assert not weight.per_channel
    assert weight.scale.tolist() == [0.5]
    assert torch.equal(weight.values_NK.float(), torch.cat([values.float() for values, _ in parts]))


@pytest.mark.parametrize("with_bias", [False, True])
def test_any_other_mix_of_scales_becomes_one_per_channel(with_bias: bool) -> None:
    parts = [stored(8, torch.tensor(0.5)), stored(4, torch.tensor([[1.0], [2], [3], [4]]))]
    bias = torch.randn(12) if with_bias else None
    weight = Fp8Weight.from_checkpoint(parts, bias)
    assert weight.scale.tolist() == [0.5] * 8 + [1, 2, 3, 4]
    true = torch.cat([values.double() * scale.double().reshape(-1, 1) for values, scale in parts])
    x = torch.randn(5, 32)
    activation = quantized(x)
    given = activation.quantized_TK.double() * activation.scale_T.double()[:, None]
    expected = given @ true.t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(run(activation, weight).double(), expected, rtol=1e-5, atol=1e-4)


def test_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Fp8Weight.quantize(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(ValueError, match="FP8 scale"):
        Fp8Weight.from_checkpoint([stored(8, torch.ones(3))])
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive finite"):
            Fp8Weight.from_checkpoint([stored(8, torch.tensor(bad))])
    with pytest.raises(ValueError, match="bias"):
        Fp8Weight(torch.zeros(8, 16).to(E4M3), torch.ones(1), torch.zeros(8))
    with pytest.raises(ValueError, match="FP8 weight of"):
        Fp8Weight(torch.zeros(8, 16), torch.ones(1))
    weight = Fp8Weight.quantize(torch.randn(8, 16))
    with pytest.raises(ValueError, match="quantised activation"):
        linear_fp8(Activation(torch.zeros(2, 16)), weight, torch.empty(2, 8))
    with pytest.raises(ValueError, match="linear_fp8: x"):
        linear_fp8(quantized(torch.zeros(2, 15)), weight, torch.empty(2, 8))
    with pytest.raises(ValueError, match="contiguous"):
        linear_fp8(quantized(torch.zeros(2, 16)), weight, torch.empty(2, 9)[:, :8])


@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (8200, 3600)])
@pytest.mark.parametrize("num_rows", [1, 16, 33, 64, 128])
def test_equal_shares_cover_every_tile_once(shape: tuple[int, int], num_rows: int) -> None:
    """The arithmetic by which the kernel's programs find each other's partial sums, said a second time."""
    cut = stream_cut(num_rows, *shape, 132)
    steps = -(-shape[1] // cut.block_k)
    units = -(-shape[0] // cut.block_n) * steps
    owner = []
    for program in range(cut.programs):
        first, end = program * units // cut.programs, (program + 1) * units // cut.programs
        assert end > first
        owner += [program] * (end - first)
    assert len(owner) == units
    for tile in range(units // steps):
        having = owner[tile * steps : (tile + 1) * steps]
        assert having[0] == ((tile * steps + 1) * cut.programs - 1) // units
        assert having[-1] == ((tile * steps + steps) * cut.programs - 1) // units
        assert having[-1] - having[0] < cut.max_parts
    assert cut.num_stages >= 2


def test_few_programs_share_a_tile() -> None:
    assert even_programs(64, 132) == 128  # halves; 132 would cut a tile in up to four
    assert max_programs_per_tile(64, 64 * 8, 128) == 2
    assert max_programs_per_tile(64, 64 * 8, 132) > 2
