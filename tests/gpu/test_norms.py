"""RMSNorm and SiLU-and-multiply on the device: against double precision, in graphs, rows apart from rows."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.rms_norm import cases as norm_cases
from kernels.rms_norm import rms_norm
from kernels.silu_mul import cases as silu_cases
from kernels.silu_mul import silu_mul

pytestmark = pytest.mark.gpu

NORM_CASES = [
    *norm_cases.SCALED_CASES,
    norm_cases.ScaledCase(1, 4096),
    norm_cases.ScaledCase(257, 4096, with_out=False),
    norm_cases.ScaledCase(33, 3072),
    norm_cases.ScaledCase(9, 8192, with_residual=False),
    norm_cases.ScaledCase(9, 4096, with_delta=True),
]
SILU_CASES = [
    *silu_cases.SCALED_CASES,
    silu_cases.ScaledCase(1, 14336),
    silu_cases.ScaledCase(257, 14336, with_out=False),
    silu_cases.ScaledCase(9, 28672),
    silu_cases.ScaledCase(33, 11008),
    silu_cases.ScaledCase(33, 14336, with_delta=True),
]


def norm(inputs: dict[str, Any], outputs: dict[str, torch.Tensor | None]) -> None:
    rms_norm(eps=1e-5, **inputs, **outputs)


def silu(inputs: dict[str, Any], outputs: dict[str, torch.Tensor | None]) -> None:
    silu_mul(**inputs, **outputs)


def assert_quantised(outputs: dict[str, torch.Tensor | None], expected: torch.Tensor) -> None:
    """Within half a step of e4m3, bf16's rounding and fp32's."""
    quantized, scale = outputs["quantized"], outputs["quantized_scale_T"].double()
    largest = (expected.abs().amax(1) / 448).clamp_min(2.0**-126)
    torch.testing.assert_close(scale, largest, rtol=2.0**-8, atol=0)
    got = quantized.double() * scale[:, None]
    # One number in a thousand lies so near an edge that bf16's rounding takes it across: a whole step.
    off = (got - expected).abs()
    assert (off <= 2.0**-3 * expected.abs() + 2.0**-9 * scale[:, None]).all()
    near = off <= (1.01 * 2.0**-4 + 2.0**-8) * expected.abs() + 2.0**-10 * scale[:, None]
    assert near.double().mean() > 0.999


@pytest.mark.parametrize("case", NORM_CASES, ids=str)
def test_scaled_norm(case: norm_cases.ScaledCase, device: torch.device) -> None:
    inputs = case.inputs(torch.bfloat16, device)
    expected, summed = case.expected(inputs, 1e-5)
    outputs = case.outputs(inputs)
    norm(inputs, outputs)
    if case.with_residual:
        torch.testing.assert_close(inputs["residual"].double(), summed, rtol=2.0**-8, atol=1e-6)
    if case.with_out:
        torch.testing.assert_close(outputs["out"].double(), expected, rtol=2.0**-7, atol=1e-5)
    assert_quantised(outputs, expected)


@pytest.mark.parametrize("case", SILU_CASES, ids=str)
def test_scaled_silu_mul(case: silu_cases.ScaledCase, device: torch.device) -> None:
    inputs = case.inputs(torch.bfloat16, device)
    expected, outputs = case.expected(inputs), case.outputs(inputs)
    silu(inputs, outputs)
    if case.with_out:
        torch.testing.assert_close(outputs["out_TF"].double(), expected, rtol=2.0**-7, atol=1e-5)
    assert_quantised(outputs, expected)


@pytest.mark.parametrize(
    ("run", "case", "rows"),
    [
        (norm, norm_cases.ScaledCase(6, 4096), "x"),
        (silu, silu_cases.ScaledCase(6, 14336), "gate_up_T2F"),
    ],
    ids=["rms_norm", "silu_mul"],
)
@pytest.mark.parametrize("size", [1e6, float("nan"), float("inf")])
def test_one_tenants_row_never_moves_anothers(
    run: Callable,
    case: norm_cases.ScaledCase | silu_cases.ScaledCase,
    rows: str,
    size: float,
    device: torch.device,
) -> None:
    results = []
    for factor in (1.0, size):
        inputs = case.inputs(torch.bfloat16, device)
        inputs[rows][3] *= factor
        outputs = case.outputs(inputs)
        run(inputs, outputs)
        results.append(outputs)
    others = [0, 1, 2, 4, 5]
    for name, clean in results[0].items():
        spoiled = results[1][name]
        if clean.dtype == torch.float8_e4m3fn:
            clean, spoiled = clean.view(torch.uint8), spoiled.view(torch.uint8)
        assert torch.equal(spoiled[others], clean[others]), name


@pytest.mark.parametrize(
    ("run", "case"),
    [
        (norm, norm_cases.ScaledCase(40, 4096)),
        (norm, norm_cases.ScaledCase(40, 4096, with_delta=True)),
        (silu, silu_cases.ScaledCase(40, 14336)),
        (silu, silu_cases.ScaledCase(40, 14336, with_delta=True)),
    ],
    ids=["rms_norm", "rms_norm-delta", "silu_mul", "silu_mul-delta"],
)
def test_same_bits_kept_or_not_and_replayed(
    run: Callable, case: norm_cases.ScaledCase | silu_cases.ScaledCase, device: torch.device
) -> None:
    """What the base reads does not depend on whether adapters read too; nor on being in a graph."""
    bits = []
    for kept in (True, False):
        case = replace(case, with_out=kept)
        inputs = case.inputs(torch.bfloat16, device)
        first = {name: rows.clone() for name, rows in inputs.items() if name != "delta"}
        outputs = case.outputs(inputs)
        run(inputs, outputs)
        bits.append((outputs["quantized"].view(torch.uint8).clone(), outputs["quantized_scale_T"].clone()))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(inputs, outputs)
        for _ in range(3):
            for name, rows in first.items():
                inputs[name].copy_(rows)
            for rows in outputs.values():
                if rows is not None:
                    rows.copy_(torch.full_like(rows, float("nan"), dtype=torch.float32))
            graph.replay()
            bits.append(
                (outputs["quantized"].view(torch.uint8).clone(), outputs["quantized_scale_T"].clone())
            )
    for other in bits[1:]:
        assert all(torch.equal(*both) for both in zip(bits[0], other, strict=True))


@pytest.mark.parametrize(
    ("run", "case"),
    [
        (norm, norm_cases.ScaledCase(40, 4096, with_delta=True)),
        (norm, norm_cases.ScaledCase(40, 4096, with_residual=False, with_delta=True)),
        (silu, silu_cases.ScaledCase(40, 14336, with_delta=True)),
    ],
    ids=["rms_norm", "rms_norm-no-residual", "silu_mul"],
)
def test_rows_of_the_base_alone_have_the_bits_of_a_step_without_adapters(
    run: Callable, case: norm_cases.ScaledCase | silu_cases.ScaledCase, device: torch.device
) -> None:
    inputs = case.inputs(torch.bfloat16, device)
    plain = {name: rows.clone() for name, rows in inputs.items() if name != "delta"}
    outputs, plain_outputs = case.outputs(inputs), case.outputs(plain)
    run(inputs, outputs)
    run(plain, plain_outputs)
    alone = inputs["delta"].has_adapter_T == 0
    for name, rows in (outputs | inputs).items():
        if name != "delta":
            expected = (plain_outputs | plain)[name]
            if rows.dtype == torch.float8_e4m3fn:
                rows, expected = rows.view(torch.uint8), expected.view(torch.uint8)
            if len(rows) == len(alone):
                rows, expected = rows[alone], expected[alone]
            assert torch.equal(rows, expected), name


def test_no_rows(device: torch.device) -> None:
    x = torch.empty(0, 64, device=device)
    assert rms_norm(x, torch.ones(64, device=device), 1e-6, x) is x
    assert silu_mul(torch.empty(0, 64, device=device), x[:, :32]).shape == (0, 32)


def test_an_early_start_waits_for_both_streams_that_join(device: torch.device) -> None:
    """The norm's x is made on a second stream, slowly, and its residual on the first, by an early starter."""
    torch.manual_seed(0)
    x, residual, other = (torch.randn(64, 4096, device=device).bfloat16() for _ in range(3))
    weight, square = torch.rand(4096, device=device).bfloat16(), torch.eye(4096, device=device).bfloat16()
    made, out = torch.empty_like(x), torch.empty_like(x)
    side = torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            made.copy_(x)
            for _ in range(8):
                made.copy_(made @ square)
        rms_norm(other, weight, 1e-5, out, residual)
        torch.cuda.current_stream().wait_stream(side)
        rms_norm(made, weight, 1e-5, out, residual)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(20):
        x.normal_()
        made.fill_(float("nan"))
        before = residual.clone()
        graph.replay()
        expected = (before.float() + other.float()).bfloat16()
        expected = (expected.float() + x.float()).bfloat16()
        assert torch.equal(residual, expected)
        torch.testing.assert_close(
            out, torch.nn.functional.rms_norm(expected.float(), (4096,), weight.float(), 1e-5).bfloat16()
        )
