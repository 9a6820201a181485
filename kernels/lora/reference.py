"""LoRA in torch: the CPU engine's two paths. `cases.naive_lora` is the plain statement of the same thing.

Both do the same sums in the same order for a row: which path a slot takes depends on its batch mates, its bits do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.lora.stack import StackedGroup
from kernels.lora_work import SlotGroup
from kernels.workspace import Workspace


def add_segment(
    x_TK: Tensor, weights: SlotGroup, rows: slice | Tensor, out_TN: Tensor, widths: Sequence[int]
) -> None:
    """Semantics: out[rows, columns of m] += scale[m] * (x[rows] A^T)[ranks of m] B[m], one slot."""
    assert weights.a is not None
    shrunk = torch.mm(x_TK[rows], weights.a.t())
    rank_start, column = 0, 0
    for rank, scale, b, width in zip(weights.ranks, weights.scales, weights.b, widths, strict=True):
        if rank:
            assert b is not None
            delta = torch.mm(shrunk[:, rank_start : rank_start + rank].mul_(scale), b)
            target = out_TN[:, column : column + width]
            if isinstance(rows, slice):
                target[rows].add_(delta)
            else:
                target.index_add_(0, rows, delta)
        rank_start += rank
        column += width


def add_items(
    x_TK: Tensor,
    stack: StackedGroup,
    gather: Tensor,
    rows: Tensor,
    kept: Tensor | None,
    out_TN: Tensor,
    workspace: Workspace,
) -> None:
    """Semantics: as `add_segment`, for P slots at once with the same number of (padded) rows each.

    Args:
        gather: [P * M] row of the batch that each padded row reads.
        rows: the batch rows of the padded rows that count.
        kept: which padded rows those are; None when all.
    """
    num_positions, width_in, total_rank = stack.a_PKR.shape
    x = torch.index_select(x_TK, 0, gather, out=workspace.take("x", (len(gather), width_in), x_TK.dtype))
    x_PMK = x.view(num_positions, -1, width_in)
    shrunk = workspace.take("shrunk", (num_positions, x_PMK.shape[1], total_rank), x_TK.dtype)
    torch.bmm(x_PMK, stack.a_PKR, out=shrunk).mul_(stack.scale_P1R)
    rank_start, column = 0, 0
    for rank, width, b_PrN in zip(stack.ranks, stack.widths, stack.b_PrN, strict=True):
        if rank:
            delta = workspace.take("delta", (num_positions, x_PMK.shape[1], width), x_TK.dtype)
            torch.bmm(shrunk[:, :, rank_start : rank_start + rank], b_PrN, out=delta)
            flat = delta.view(-1, width)
            if kept is not None:
                flat = flat.index_select(0, kept)
            out_TN[:, column : column + width].index_add_(0, rows, flat)
        rank_start += rank
        column += width
