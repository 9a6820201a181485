"""The LoRA kernels against the naive statement, interpreted."""

import pytest
import torch

from kernels.backend import INTERPRETING
from kernels.lora.device_cases import SMALL_CASES, TILE_CASES, DeviceCase
from tests.kernels.lora_rows import run_case


def test_the_kernels_are_what_runs() -> None:
    assert INTERPRETING


@pytest.mark.parametrize("case", [*SMALL_CASES, *TILE_CASES], ids=str)
def test_matches_the_naive_statement(case: DeviceCase) -> None:
    run_case(case, "cpu", torch.float32, tolerance=1e-5)
