"""Kernels under Triton's interpreter: a process of its own, because Triton decides when a kernel is defined.

`make kernels` runs this tree; the ordinary run of the tests does not collect it.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.support.arithmetic import arithmetic_threads

if os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("tests/interpreted wants TRITON_INTERPRET=1 in the environment: make kernels")
if "triton" in sys.modules:
    raise pytest.UsageError("triton was imported before tests/interpreted/conftest.py could look at the mode")

import torch
import triton

from tests.interpreted import quicker

assert triton.knobs.runtime.interpret
assert not torch.cuda.is_initialized()
quicker.install()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Shapes are small."""
    with arithmetic_threads(1):
        yield
