"""Builds parts of a projection, and what adapters add to it, for the tests of the ops that read it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.activation import AdapterDelta


def adapter_delta(num_rows: int, width: int, device: torch.device | str = "cpu") -> AdapterDelta:
    """Two rows of three have an adapter, the first among them; rows of the base alone are NaN."""
    generator = torch.Generator().manual_seed(num_rows * 13 + width)
    has_adapter = (torch.arange(num_rows) % 3 != 1).int()
    y = torch.randn(num_rows, width, generator=generator)
    y[has_adapter == 0] = float("nan")
    return AdapterDelta(y.to(device), has_adapter.to(device))


def split(y_TN: Tensor, num_parts: int) -> Tensor:
    """fp32 [P, T, N], whose sum is y."""
    generator = torch.Generator().manual_seed(num_parts)
    parts = torch.randn(num_parts, *y_TN.shape, generator=generator).to(y_TN.device)
    parts[0] = y_TN.float() - parts[1:].sum(0)
    return parts


def added(delta: AdapterDelta | None) -> Tensor | float:
    """What is added to each row, in double precision: zero to rows of the base alone."""
    if delta is None:
        return 0.0
    rows = torch.zeros_like(delta.y_TN, dtype=torch.float64)
    for row in delta.has_adapter_T.nonzero().flatten().tolist():
        rows[row] = delta.y_TN[row].double()
    return rows
