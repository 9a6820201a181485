"""The KV write: every key and value in its slot, every other slot as it was."""

import pytest
import torch

from kernels.kv_write import kv_rows, kv_write
from kernels.kv_write.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fills_its_slots_and_no_other(case: Case) -> None:
    kv, slots = case.inputs()
    cache = torch.full((case.num_blocks, 2, case.num_heads, case.block_size, case.head_dim), float("nan"))
    kv_write(kv, kv_rows(slots, case.num_heads, case.block_size), cache)
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, case.block_size)
        assert torch.equal(cache[block, :, :, offset], kv[token])
    written = cache[:, 0, 0, :, 0].isfinite().sum()
    assert written == case.num_tokens


def test_reads_a_strided_view() -> None:
    fused = torch.randn(3, 6, 16)  # two query heads, then two key and two value heads
    cache = torch.zeros(2, 2, 2, 16, 16)
    slots = torch.tensor([16, 17, 31])
    kv_write(fused[:, 2:].unflatten(1, (2, 2)), kv_rows(slots, 2, 16), cache)
    assert torch.equal(cache[1, 0, :, 15], fused[2, 2:4])
    assert torch.equal(cache[1, 1, :, 1], fused[1, 4:6])


def test_refuses_what_does_not_fit() -> None:
    rows = kv_rows(torch.tensor([16]), 2, 16)
    with pytest.raises(ValueError, match="rows"):
        kv_write(torch.zeros(2, 2, 2, 16), rows, torch.zeros(2, 2, 2, 16, 16))
    with pytest.raises(ValueError, match="cache"):
        kv_write(torch.zeros(1, 2, 2, 16), rows, torch.zeros(2, 2, 4, 16, 16))
