"""How far a result on one device may be from that on another."""

from __future__ import annotations

import torch
from torch import Tensor

RATIO = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of norms, for one op: some ten times what rounding makes of it."""


def assert_near(got: Tensor, expected: Tensor, ratio: float) -> None:
    """Every element is finite, and the difference is small beside what is expected."""
    assert got.shape == expected.shape
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    assert got.isfinite().all()
    assert (got - expected).norm() <= ratio * expected.norm()
