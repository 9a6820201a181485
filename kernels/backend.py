"""Selects the implementation of an op by a tensor's device: Triton on a GPU, torch on a CPU.

With TRITON_INTERPRET=1 Triton's interpreter runs the kernels on CPU tensors too: slow, for tests on small
shapes.
"""

from __future__ import annotations

import os

from torch import Tensor

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
"""Read once: Triton itself decides when a kernel is defined."""


def uses_triton(tensor: Tensor) -> bool:
    """Returns whether ops on this tensor's device run Triton kernels."""
    return tensor.is_cuda or INTERPRETING
