"""The 4-bit linear on the device: every tiling against exact sums, rows apart from rows, in graphs."""

import dataclasses

import pytest
import torch

from kernels.activation import Activation
from kernels.linear_int4 import Int4Weight, linear_int4
from kernels.linear_int4.cases import CASES, DEVICE_CASES, Case, activation, expected
from kernels.linear_int4.kernel import MAX_TILED_ROWS, Tiling, dequantize, launch

pytestmark = pytest.mark.gpu
RATIO = 6e-3
"""Of norms, row by row: bf16's rounding is 1.7e-3, the rest is the tensor cores' own accumulators."""


def poisoned(num_rows: int, columns: int) -> torch.Tensor:
    return torch.full((num_rows, columns), float("nan"), dtype=torch.bfloat16, device="cuda")


def run(rows: Activation, weight: Int4Weight) -> torch.Tensor:
    assert rows.x_TK is not None
    return linear_int4(rows, weight, poisoned(len(rows.x_TK), weight.out_features))


def assert_rows_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.isfinite().all()
    off = (got.double() - wanted).norm(dim=1)
    assert (off <= RATIO * wanted.norm(dim=1) + 1e-30).all(), (off / wanted.norm(dim=1)).max()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", CASES + DEVICE_CASES, ids=str)
def test_matches_exact_sums(case: Case, device: torch.device) -> None:
    rows = case.rows(device, torch.bfloat16)
    for lowest in (0, 1):
        weight = case.weight(device, lowest)
        assert weight.signed == (lowest == 1 and case.for_fp8 and not case.with_zeros)
        assert_rows_near(run(rows, weight), expected(rows, weight))
        assert not weight.arrivals.any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("with_order", [False, True])
def test_many_rows_go_through_bf16(for_fp8: bool, with_order: bool, device: torch.device) -> None:
    case = Case(max(MAX_TILED_ROWS.values()) + 7, 640, 264, for_fp8, with_bias=True, with_order=with_order)
    rows = case.rows(device, torch.bfloat16)
    for lowest in (0, 1):  # signed codes stay with the tiles
        weight = case.weight(device, lowest)
        assert_rows_near(run(rows, weight), expected(rows, weight))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("block_n", [64, 128])
@pytest.mark.parametrize("splits", [1, 3, 8])
def test_every_tiling(splits: int, block_n: int, for_fp8: bool, device: torch.device) -> None:
    case = Case(23, 2816, 1000, for_fp8, with_bias=True)
    rows, weight = case.rows(device, torch.bfloat16), case.weight(device, lowest=1)
    x_TK, scale_T = (rows.quantized_TK, rows.scale_T) if for_fp8 else (rows.x_TK, None)
    assert x_TK is not None
    for early in (False, True):
        out = launch(
            x_TK, scale_T, weight, poisoned(23, 1000), Tiling(16, block_n, splits, 3, block_n // 16), early
        )
        assert_rows_near(out, expected(rows, weight))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dequantizes(case: Case, device: torch.device) -> None:
    for lowest in (0, 1):
        weight = case.weight(device, lowest)
        out = dequantize(weight, poisoned(case.out_features, case.in_features))
        assert torch.equal(out, weight.dequantize().bfloat16())


@pytest.mark.parametrize("for_fp8", [False, True])
@pytest.mark.parametrize("num_rows", [5, 32, 70])
def test_a_row_has_the_same_bits_whatever_its_mates(
    num_rows: int, for_fp8: bool, device: torch.device
) -> None:
    case = Case(num_rows, 4096, 1024, for_fp8)
    rows, weight = case.rows(device, torch.bfloat16), case.weight(device, lowest=1)
    whole = run(rows, weight)
    assert rows.x_TK is not None
    for poison in (0.0, 3.0, float("nan"), float("inf")):
        x = rows.x_TK.clone()
        x[1:] = poison
        assert torch.equal(run(activation(x), weight)[0], whole[0])
        x = rows.x_TK.clone()
        x[2, 100] = poison
        others = [row for row in range(num_rows) if row != 2]
        assert torch.equal(run(activation(x), weight)[others], whole[others])
    assert all(torch.equal(run(rows, weight), whole) for _ in range(20))


@pytest.mark.parametrize("for_fp8", [False, True])
def test_captured_and_replayed(for_fp8: bool, device: torch.device) -> None:
    """A chain of products in one graph, each reading what the last wrote: early starts wait their turn."""
    case = Case(8, 4096, 4096, for_fp8)
    weights = [dataclasses.replace(case, with_bias=bias).weight(device, lowest=1) for bias in (False, True)]
    rows = case.rows(device, torch.bfloat16)
    assert rows.x_TK is not None
    assert rows.quantized_TK is not None
    assert rows.scale_T is not None
    middle, out = poisoned(8, 4096), poisoned(8, 4096)

    def chain() -> None:
        linear_int4(rows, weights[0], middle)
        rows.x_TK.copy_(middle / 64)
        rows.quantized_TK.copy_(middle / 64)
        linear_int4(rows, weights[1], out)

    start = [tensor.clone() for tensor in (rows.x_TK, rows.quantized_TK)]

    def rewind() -> None:
        rows.x_TK.copy_(start[0])
        rows.quantized_TK.copy_(start[1])

    chain()
    wanted = out.clone()
    graph = torch.cuda.CUDAGraph()
    rewind()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(50):
        rewind()
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, wanted)


def test_quantised_on_the_device_as_on_a_cpu(device: torch.device) -> None:
    weight = torch.randn(200, 640)
    for symmetric in (True, False):
        here = Int4Weight.quantize(weight, symmetric=symmetric, for_fp8=True)
        there = Int4Weight.quantize(weight.to(device), symmetric=symmetric)
        assert there.for_fp8
        off = (here.dequantize() - there.dequantize().cpu()).abs()
        assert (off > 0).float().mean() < 1e-3  # ties in the last bit of a division


@pytest.mark.parametrize("for_fp8", [False, True])
def test_float_results_are_refused(for_fp8: bool, device: torch.device) -> None:
    case = Case(2, 128, 64, for_fp8)
    with pytest.raises(ValueError, match="on a GPU it is bf16"):
        linear_int4(case.rows(device, torch.bfloat16), case.weight(device), torch.empty(2, 64, device=device))
