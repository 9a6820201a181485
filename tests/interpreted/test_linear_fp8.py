"""The Triton kernel of the FP8 linear under the interpreter, against sums in double precision."""

import dataclasses

import pytest
import torch

from kernels.activation import Activation, Projection
from kernels.linear_fp8 import Fp8Weight, Product, linear_fp8, product
from kernels.linear_fp8.cases import CASES, Case, quantized
from kernels.linear_fp8.kernel import Cut, linear_fp8_triton
from kernels.linear_fp8.scratch import scratch


def run(activation: Activation, weight: Fp8Weight) -> torch.Tensor:
    out = torch.full((len(activation.x_TK), weight.out_features), float("nan"))
    projection: Projection = linear_fp8(activation, weight, out)
    return out if projection.scale_T is None else out * projection.scale_T[:, None]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_exact_sums(case: Case) -> None:
    activation, weight = case.inputs()
    assert product(case.num_rows, weight) is Product.TRITON
    expected = case.expected(activation, weight)
    assert ((run(activation, weight) - expected).norm(dim=1) <= 1e-5 * expected.norm(dim=1)).all()


@pytest.mark.parametrize("split_k", [1, 2, 3])
def test_parts_of_k_are_summed_in_their_order(split_k: int) -> None:
    activation, weight = Case(18, 400, 70, per_channel=True).inputs()
    cut = Cut(16, 64, 64, split_k, num_warps=4, num_stages=2)
    results = []
    for _ in range(2):
        out = torch.full((18, 70), float("nan"))
        linear_fp8_triton(activation.quantized_TK, activation.scale_T, weight, out, cut)
        results.append(out)
    expected = Case(18, 400, 70).expected(activation, weight)
    assert ((results[0] - expected).norm(dim=1) <= 1e-5 * expected.norm(dim=1)).all()
    assert torch.equal(*results)
    assert not scratch(torch.device("cpu"))[1].any()  # who counts last resets


def test_a_row_of_nan_stays_alone() -> None:
    case = Case(4, 100, 40)
    activation, weight = case.inputs()
    clean = run(activation, weight)
    x = activation.x_TK.clone()
    x[2, 7] = float("nan")
    spoiled = run(dataclasses.replace(quantized(x)), weight)
    assert torch.equal(spoiled[[0, 1, 3]], clean[[0, 1, 3]])
    assert not spoiled[2].isfinite().any()
