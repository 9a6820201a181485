"""The LoRA kernels against the naive statement, interpreted."""

import pytest
import torch

from kernels.backend import INTERPRETING
from kernels.lora import tiling
from kernels.lora.device_cases import SMALL_CASES, TILE_CASES, DeviceCase, Slot
from kernels.lora.table import E4M3
from tests.kernels.lora_rows import run_case, run_delta, run_group

BLOCKS = DeviceCase(64, (48,), (Slot((4,)), Slot((8,), E4M3)), (0, 1, 0, 0, 1), scaled=True)
SHORT_ROWS = DeviceCase(
    48, (64, 32), (Slot((9, 3)), None, Slot((0, 5), E4M3)), (0, 2, -1, 2, 1), bucket=20, scaled=True
)
"""In a bucket in which a group's ranks take several rows of A at a time."""


def test_the_kernels_are_what_runs() -> None:
    assert INTERPRETING


@pytest.mark.parametrize("case", [*SMALL_CASES, *TILE_CASES], ids=str)
def test_matches_the_naive_statement(case: DeviceCase) -> None:
    run_case(case, "cpu", torch.float32, tolerance=1e-5)


@pytest.mark.parametrize(
    "case", [case for case in SMALL_CASES if case.num_tokens <= tiling.MEDIUM_BUCKET], ids=str
)
def test_a_delta_in_memory_of_its_own(case: DeviceCase) -> None:
    run_delta(case, "cpu", torch.float32, tolerance=1e-5)


@pytest.mark.parametrize(
    ("case", "size"),
    [(BLOCKS, 3), (SMALL_CASES[7], 2), (SHORT_ROWS, 4)],
    ids=str,
)
def test_parts_of_a_groups_ranks_are_summed(case: DeviceCase, size: int) -> None:
    run_group(case, size, "cpu", torch.float32, tolerance=1e-5)
