"""The FP8 linear on the device: every product against exact sums, in graphs, rows apart from rows."""

import dataclasses

import pytest
import torch

from kernels.activation import Activation, Parts, Projection, true_rows
from kernels.linear_fp8 import Fp8Weight, Product, linear_fp8, num_parts, product
from kernels.linear_fp8.cases import CASES, DEVICE_CASES, Case, quantized
from kernels.linear_fp8.kernel import linear_fp8_triton
from kernels.linear_fp8.scratch import scratch
from kernels.rms_norm import rms_norm

pytestmark = pytest.mark.gpu
RATIO = 6e-3
"""Of norms, row by row: bf16's rounding is 1.7e-3, the rest is the tensor cores' own accumulators."""


def run(activation: Activation, weight: Fp8Weight, out: torch.Tensor | None = None) -> torch.Tensor:
    """True values."""
    if out is None:
        shape = (len(activation.x_TK), weight.out_features)
        out = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=activation.x_TK.device)
    projection = linear_fp8(activation, weight, out)
    return out if projection.scale_T is None else out.double() * projection.scale_T.double()[:, None]


def assert_rows_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.isfinite().all()
    off = (got.double() - expected).norm(dim=1)
    assert (off <= RATIO * expected.norm(dim=1) + 1e-30).all(), (off / expected.norm(dim=1)).max()


@pytest.mark.parametrize("case", CASES + DEVICE_CASES, ids=str)
def test_matches_exact_sums(case: Case, device: torch.device) -> None:
    activation, weight = case.inputs(device)
    assert_rows_near(run(activation, weight), case.expected(activation, weight))


@pytest.mark.parametrize("case", [case for case in DEVICE_CASES if case.num_rows <= 128], ids=str)
def test_parts_add_up_to_exact_sums(case: Case, device: torch.device) -> None:
    activation, weight = case.inputs(device)
    count = num_parts(case.num_rows, weight)
    assert product(case.num_rows, weight) is Product.STREAM or count == 1
    if count == 1:
        return
    out = torch.full((case.num_rows, weight.out_features), float("nan"), dtype=torch.bfloat16, device=device)
    parts = torch.full((count, *out.shape), float("nan"), device=device)
    for _ in range(3):
        found = linear_fp8(activation, weight, out, parts=Parts(parts))
    assert found.parts_PTN is parts
    assert found.scale_T is None, "parts are true values"
    assert out.isnan().all(), "nothing is written there"
    assert_rows_near(true_rows(out, None, None, parts), case.expected(activation, weight))


def test_every_product_is_tested(device: torch.device) -> None:
    chosen = {product(case.num_rows, case.inputs(device)[1]) for case in DEVICE_CASES}
    if torch.cuda.get_device_capability(device) == (9, 0):
        assert chosen == set(Product) - {Product.REFERENCE}
    else:
        assert chosen == set(Product) - {Product.REFERENCE, Product.STREAM}


@pytest.mark.parametrize("case", [Case(5, 4096, 4096), Case(64, 14336, 4096, True, True)], ids=str)
def test_the_plain_kernel_splits_k(case: Case, device: torch.device) -> None:
    activation, weight = case.inputs(device)
    scale_T = activation.scale_T if weight.per_channel else None
    results = []
    for _ in range(5):
        out = torch.full((case.num_rows, case.out_features), float("nan"), device=device).bfloat16()
        linear_fp8_triton(activation.quantized_TK, scale_T, weight, out)
        results.append(out)
    got = results[0] if scale_T is not None else results[0].double() * activation.scale_T.double()[:, None]
    assert_rows_near(got, case.expected(activation, weight))
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert not scratch(activation.scale_T.device)[1].any()  # who counts last resets


BATCHES = [
    Case(24, 4096, 6144),
    Case(64, 14336, 4096, per_channel=True),
    Case(128, 14336, 4096, per_channel=True),
    Case(128, 4096, 4096),
]
MORE_BATCHES = [*BATCHES, Case(9, 1000, 777, True, True), Case(300, 4096, 6144, True)]


@pytest.mark.parametrize("case", MORE_BATCHES, ids=str)
def test_a_row_does_not_know_its_batch(case: Case, device: torch.device) -> None:
    """In a batch of one size: whatever the others hold, wherever the row stands, again and again."""
    activation, weight = case.inputs(device)
    whole = run(activation, weight)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        order = torch.randperm(case.num_rows, generator=generator).to(device)
        shuffled = Activation(
            activation.x_TK[order],
            activation.quantized_TK.view(torch.uint8)[order].view(torch.float8_e4m3fn),
            activation.scale_T[order],
        )
        assert torch.equal(run(shuffled, weight), whole[order])
    alone = torch.randn_like(activation.x_TK)
    alone[3] = activation.x_TK[3]
    assert torch.equal(run(quantized(alone), weight)[3], whole[3])


@pytest.mark.parametrize("case", BATCHES, ids=str)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_wild_row_stays_alone(case: Case, poison: float, device: torch.device) -> None:
    activation, weight = case.inputs(device)
    clean = run(activation, weight)
    x = activation.x_TK.clone()
    x[2, 7] = poison
    spoiled = run(quantized(x), weight)
    others = [row for row in range(case.num_rows) if row != 2]
    assert torch.equal(spoiled[others], clean[others])
    assert not spoiled[2].isfinite().any()


@pytest.mark.parametrize(
    ("num_rows", "in_parts"), [(1, False), (32, False), (64, False), (256, False), (1, True), (64, True)]
)
def test_a_chain_of_norms_and_products_in_a_graph(
    num_rows: int, in_parts: bool, device: torch.device
) -> None:
    """Kernels start before their predecessors end: were one to read too early, replays would differ."""
    torch.manual_seed(0)
    weights = [
        Fp8Weight.quantize(torch.randn(4096, 4096, device=device) / 64, per_channel=index % 2 == 1)
        for index in range(6)
    ]
    norm_weight = torch.rand(4096, device=device).bfloat16()
    start = torch.randn(num_rows, 4096, device=device).bfloat16()
    residual, out = torch.empty_like(start), torch.empty_like(start)
    activation = dataclasses.replace(quantized(start))
    memory = torch.empty(max(num_parts(num_rows, weight) for weight in weights), *start.shape, device=device)

    def step() -> None:
        residual.copy_(start)
        last = Projection(start)
        for weight in weights:
            rms_norm(
                last.y_TN, norm_weight, 1e-5, None, residual, scale_T=last.scale_T, parts=last.parts_PTN,
                quantized=activation.quantized_TK, quantized_scale_T=activation.scale_T,
            )  # fmt: skip
            parts = Parts(memory[: num_parts(num_rows, weight)]) if in_parts else None
            last = linear_fp8(activation, weight, out, parts=parts)
        if last.parts_PTN is not None:
            out.copy_(last.parts_PTN.sum(0))

    results = []
    for _ in range(2):  # once to compile; then one kernel at a time
        step()
        torch.cuda.synchronize()
    results.append((out.clone(), residual.clone()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(50):
        out.fill_(float("nan"))
        residual.fill_(float("nan"))
        graph.replay()
        results.append((out.clone(), residual.clone()))
    assert results[0][0].isfinite().all()
    assert all(torch.equal(*both) for other in results[1:] for both in zip(results[0], other, strict=True))


def test_a_bias_of_true_size_beside_a_row_of_zeros(device: torch.device) -> None:
    weight = Fp8Weight.quantize(torch.randn(4096, 4096, device=device), torch.randn(4096, device=device))
    for num_rows in (3, 200):
        got = run(quantized(torch.zeros(num_rows, 4096, device=device)), weight)
        assert torch.equal(got, weight.bias_N.bfloat16().expand(num_rows, -1))
