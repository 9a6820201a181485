"""LoRA over the table in torch: what the kernels compute, from the same lists and into the same scratch.

For tests, and for a device path without a GPU; not fast. Sums are over whole rows: a piece's first partial
holds all, the others are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.lora import tiling
from kernels.lora.device_work import DeviceWork
from kernels.lora.scratch import Scratch
from kernels.lora.table import BF16, DTYPE, MAX_MODULES, RANK_SCALES, A, AdapterTable, B


def shrink_reference(
    x_TK: Tensor, work: DeviceWork, table: AdapterTable, place: int, scratch: Scratch, early: bool = False
) -> None:
    """Semantics: partials[p, 0, r] = x[order[p]] . A[slot of p][r], partials[p, 1:, r] = 0, r < sum of ranks.

    Args:
        x_TK: T is the bucket.
        work: the step's lists.
        place: layer * number of groups + group.
        scratch: written at the places and ranks in use, nowhere else.
        early: of no meaning here; kernels may start before the last kernel of the stream has ended.
    """
    width_in = x_TK.shape[1]
    for slot, first, rows, partials in _pieces(work, scratch, *x_TK.shape):
        rank = sum(_ranks(table, place, slot))
        a = _matrix(table, place, slot, A, rank, width_in)
        x = x_TK[work.order.device[first : first + rows].long()].float()
        partials[first : first + rows, :, :rank] = 0.0
        partials[first : first + rows, 0, :rank] = x @ a.t()


def expand_reference(
    out_TN: Tensor,
    widths: Sequence[int],
    scale_T: Tensor | None,
    width_in: int,
    work: DeviceWork,
    table: AdapterTable,
    place: int,
    scratch: Scratch,
    early: bool = False,
) -> None:
    """Semantics: out[order[p], n] += sum over r of f[r] * (sum over c of partials[p, c, r]) * B[slot][r, n]
        / scale[order[p]], r running over the ranks of n's module.

    Args:
        out_TN: what the base wrote, the modules' columns side by side; updated in place.
        widths: columns of each module.
        scale_T: fp32, or None for 1.
        width_in: K of the shrink before.
        work, table, place, scratch, early: as in `shrink_reference`.
    """
    for slot, first, rows, partials in _pieces(work, scratch, out_TN.shape[0], width_in):
        row = work.order.device[first : first + rows].long()
        ranks = _ranks(table, place, slot)
        offset = int(_offsets(table, place, slot)[RANK_SCALES])
        factors = table.arena[offset : offset + 4 * sum(ranks)].view(torch.float32)
        rank_start, column = 0, 0
        for module, (rank, width) in enumerate(zip(ranks, widths, strict=False)):
            ranked = slice(rank_start, rank_start + rank)
            if rank:
                shrunk = partials[first : first + rows, :, ranked].sum(1) * factors[ranked]
                delta = shrunk @ _matrix(table, place, slot, B + module, rank, width)
                if scale_T is not None:
                    delta /= scale_T[row, None]
                columns = slice(column, column + width)
                out_TN[row, columns] = (out_TN[row, columns].float() + delta).to(out_TN.dtype)
            rank_start += rank
            column += width


def _pieces(
    work: DeviceWork, scratch: Scratch, bucket: int, width_in: int
) -> Iterator[tuple[int, int, int, Tensor]]:
    """(slot, first place, rows, partials [places, parts, rank_stride]) of items and tiles."""
    num_items, num_tiles = work.counts.device.tolist()
    kinds = [(work.items, num_items, scratch.of_items, tiling.num_chunks(width_in))]
    if work.max_tiles(bucket):
        kinds.append((work.tiles, num_tiles, scratch.of_tiles, tiling.num_splits(width_in, bucket)))
    for pieces, count, flat, parts in kinds:
        size = parts * scratch.rank_stride
        partials = flat[: len(flat) // size * size].view(-1, parts, scratch.rank_stride)
        for slot, first, rows, _ in pieces.device[:count].tolist():
            yield slot, first, rows, partials


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
