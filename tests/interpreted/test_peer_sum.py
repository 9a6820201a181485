"""The kernel that sums ranks' parts under the interpreter: all parts are in this process's memory already."""

import pytest
import torch
from torch import Tensor

from kernels.delta_cases import split
from kernels.peer_sum import Addresses, sum_norm, sum_parts
from kernels.peer_sum.reference import sum_norm_reference

EPS = 1e-5


def addresses(tensors: list[Tensor]) -> Addresses:
    return tuple(tensor.data_ptr() for tensor in tensors)


def inputs(
    size: int, rows: int, hidden: int, scaled: bool
) -> tuple[list[Tensor], list[Tensor] | None, Tensor]:
    generator = torch.Generator().manual_seed(size * 100 + rows)
    parts = [torch.randn(rows, hidden, generator=generator) * 10**rank for rank in range(size)]
    scales = [torch.rand(rows, generator=generator) + 0.1 for _ in range(size)] if scaled else None
    return parts, scales, torch.randn(rows, hidden, generator=generator)


@pytest.mark.parametrize(("size", "rows", "hidden"), [(2, 1, 256), (2, 5, 100), (4, 3, 64), (8, 130, 32)])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_as_the_reference(size: int, rows: int, hidden: int, scaled: bool, kept: bool) -> None:
    parts, scales, residual = inputs(size, rows, hidden, scaled)
    weight = torch.randn(hidden)
    found: list[tuple[Tensor, ...]] = []
    for is_kernel in (False, True):
        summed = residual.clone()
        out = torch.full_like(summed, float("nan")) if kept else None
        quantized = torch.zeros(rows, hidden, dtype=torch.float8_e4m3fn)
        scale_T = torch.zeros(rows)
        if is_kernel:
            table = None if scales is None else addresses(scales)
            sum_norm(addresses(parts), table, None, summed, weight, EPS, out, quantized, scale_T)
        else:
            sum_norm_reference(parts, scales, summed, weight, EPS, out, quantized, scale_T)
        found.append(
            (summed, scale_T, quantized.float() * scale_T[:, None], *(() if out is None else (out,)))
        )
    for expected, got in zip(*found, strict=True):
        step = 2.0**-3 * expected.abs().max() if expected is found[0][2] else 0  # of e4m3, at an edge
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 + float(step) / 8)


def test_parts_of_parts() -> None:
    parts, scales, residual = inputs(2, 3, 48, True)
    expected, out, norms = residual.clone(), torch.empty(3, 48), torch.empty(3, 48)
    sum_norm_reference(parts, scales, expected, torch.ones(48), EPS, norms)
    smaller = [split(part, 3) for part in parts]
    sum_norm(addresses(smaller), addresses(scales), None, residual, torch.ones(48), EPS, out, num_parts=3)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(out, norms)


def test_without_quantisation() -> None:
    parts, _, residual = inputs(2, 3, 48, False)
    expected, out = residual.clone(), torch.empty(3, 48)
    norms = torch.empty(3, 48)
    sum_norm_reference(parts, None, expected, torch.ones(48), EPS, norms)
    sum_norm(addresses(parts), None, None, residual, torch.ones(48), EPS, out)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(out, norms)


@pytest.mark.parametrize("shape", [(1, 7), (3, 384), (40, 384)])
def test_sums_of_parts(shape: tuple[int, int]) -> None:
    parts = [torch.randn(shape) for _ in range(4)]
    out = torch.full(shape, float("nan"))
    sum_parts(addresses(parts), None, out)
    expected = ((parts[0] + parts[1]) + parts[2]) + parts[3]
    assert torch.equal(out, expected), "in the order of the ranks"
    with pytest.raises(ValueError, match="fp32"):
        sum_parts(addresses(parts), None, out.bfloat16())


def test_refuses_shapes_that_do_not_fit() -> None:
    parts, _, residual = inputs(2, 3, 48, False)
    table = addresses(parts)
    with pytest.raises(ValueError, match="weight"):
        sum_norm(table, None, None, residual, torch.ones(4), EPS, torch.empty(3, 48))
    with pytest.raises(ValueError, match="out \\(2, 48\\)"):
        sum_norm(table, None, None, residual, torch.ones(48), EPS, torch.empty(2, 48))
    with pytest.raises(ValueError, match="neither"):
        sum_norm(table, None, None, residual, torch.ones(48), EPS, None)
    with pytest.raises(ValueError, match="together"):
        sum_norm(table, None, None, residual, torch.ones(48), EPS, None, torch.empty(3, 48))
