"""Computes LoRA over the table in torch: what the kernels compute, from the same lists, through the same
memory.

For tests, and for the device path without a GPU; not fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.lora.device_work import DeviceWork
from kernels.lora.scratch import Scratch
from kernels.lora.table import BF16, DTYPE, MAX_MODULES, RANK_SCALES, A, AdapterTable, B


def shrink_reference(x_TK: Tensor, work: DeviceWork, table: AdapterTable, place: int, shrunk: Tensor) -> None:
    """Semantics: shrunk[p, r] = f[slot of p][r] * x[order[p]] . A[slot of p][r], r < sum of ranks.

    Args:
        x_TK: T is the bucket.
        work: the step's lists.
        place: layer * number of groups + group.
        shrunk: fp32 [places, rank stride], written at the places and ranks in use, nowhere else.
    """
    for slot, first, rows in _pieces(work, len(x_TK)):
        rank = sum(_ranks(table, place, slot))
        a = _matrix(table, place, slot, A, rank, x_TK.shape[1])
        x = x_TK[work.order.device[first : first + rows].long()].float()
        offset = int(_offsets(table, place, slot)[RANK_SCALES])
        factors = table.arena[offset : offset + 4 * rank].view(torch.float32)
        shrunk[first : first + rows, :rank] = (x @ a.t()) * factors


def expand_reference(
    out_TN: Tensor,
    widths: Sequence[int],
    scale_T: Tensor | None,
    work: DeviceWork,
    table: AdapterTable,
    place: int,
    scratch: Scratch,
) -> None:
    """Semantics: out[order[p], n] += sum over r of shrunk[p, r] * B[slot of p][r, n] / scale[order[p]], r
        running over the ranks of n's module.

    Args:
        out_TN: what the base wrote, the modules' columns side by side; updated in place.
        widths: columns of each module.
        scale_T: fp32, or None for 1.
        work, table, place: as in `shrink_reference`.
        scratch: its `shrunk` is read.
    """
    for slot, first, rows in _pieces(work, len(out_TN)):
        row = work.order.device[first : first + rows].long()
        rank_start, column = 0, 0
        for module, (rank, width) in enumerate(zip(_ranks(table, place, slot), widths, strict=False)):
            if rank:
                shrunk = scratch.shrunk[first : first + rows, rank_start : rank_start + rank]
                delta = shrunk @ _matrix(table, place, slot, B + module, rank, width)
                if scale_T is not None:
                    delta /= scale_T[row, None]
                columns = slice(column, column + width)
                out_TN[row, columns] = (out_TN[row, columns].float() + delta).to(out_TN.dtype)
            rank_start += rank
            column += width


def _pieces(work: DeviceWork, bucket: int) -> Iterator[tuple[int, int, int]]:
    """(slot, first place, rows) of pairs and blocks, and of tiles where the bucket has them."""
    lists = [work.pairs, work.blocks] + ([work.tiles] if work.limits(bucket).tiles else [])
    for pieces, count in zip(lists, work.counts.device.tolist(), strict=False):
        yield from pieces.device[:count, :3].tolist()


def _offsets(table: AdapterTable, place: int, slot: int) -> Tensor:
    return table.offsets.view(-1, *table.offsets.shape[2:])[place, slot]


def _ranks(table: AdapterTable, place: int, slot: int) -> list[int]:
    return table.ranks.view(-1, *table.ranks.shape[2:])[place, slot, :MAX_MODULES].tolist()


def _matrix(table: AdapterTable, place: int, slot: int, column: int, rows: int, columns: int) -> Tensor:
    """fp32 copy of A or of a B."""
    code = int(table.ranks.view(-1, *table.ranks.shape[2:])[place, slot, DTYPE])
    dtype = torch.bfloat16 if code == BF16 else torch.float8_e4m3fn
    offset = int(_offsets(table, place, slot)[column])
    raw = table.arena[offset : offset + rows * columns * dtype.itemsize]
    return raw.view(dtype).view(rows, columns).float()
