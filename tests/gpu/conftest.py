"""A CUDA device, fp32 that is fp32, and memory that hides nothing."""

from collections.abc import Iterator

import pytest
import torch

from tests.support.arithmetic import arithmetic_threads


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> Iterator[None]:
    """Several processes test at once, each with references on the CPU: a pool of all cores in each is slower.

    Not when this file is imported: every test process imports it, and tests on the CPU would spin.
    """
    with arithmetic_threads(2):
        yield


@pytest.fixture
def device() -> Iterator[torch.device]:
    """Products in full fp32: TF32 would differ from a CPU in the fourth digit."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield torch.device("cuda")
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """`torch.empty` hands out NaN: who reads scratch memory before writing it is found out."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(4).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
