"""Selects the implementation of an op by a tensor's device: Triton on a GPU, torch on a CPU.

With TRITON_INTERPRET=1 Triton's interpreter runs the kernels on CPU tensors too: slow, for tests on small
shapes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
"""Read once: Triton itself decides when a kernel is defined."""


def uses_triton(tensor: Tensor) -> bool:
    """Returns whether ops on this tensor's device run Triton kernels."""
    return tensor.is_cuda or INTERPRETING


@contextmanager
def e4m3_output(out: Tensor | None) -> Iterator[Tensor | None]:
    """Gives the tensor that a launched kernel writes in place of `out`, which is e4m3 or None: `out` itself
    on a GPU.

    The interpreter's conversion to e4m3 loses the carry of a rounding, so there a kernel writes fp32, and
    torch converts it when the launch is over.
    """
    if out is None or not INTERPRETING:
        yield out
        return
    written = torch.empty_like(out, dtype=torch.float32)
    yield written
    out.copy_(written)
