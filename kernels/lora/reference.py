"""Computes LoRA in torch: the CPU engine's two paths. `cases.naive_lora` states the same plainly.

Both read the padded stacks and do the same sums in the same order for a row: which path a slot takes depends
on its batch mates, its bits do not (README).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.lora.stack import StackedGroup


def add_segment(
    x_TK: Tensor,
    stack: StackedGroup,
    position: int,
    rows: slice | Tensor,
    out_TN: Tensor,
    sum_over_ranks: Callable[[Tensor], None] | None = None,
) -> None:
    """Semantics: out[rows, columns of m] += (scale * x[rows] A^T)[ranks of m] B[m], one slot's rows.

    `sum_over_ranks` is applied to what is multiplied with B.
    """
    shrunk = torch.mm(x_TK[rows], stack.a_PKR[position]).mul_(stack.scale_P1R[position])
    if sum_over_ranks is not None:
        sum_over_ranks(shrunk)
    rank_start, column = 0, 0
    for rank, width, b_PrN in zip(stack.ranks, stack.widths, stack.b_PrN, strict=True):
        if rank:
            part = shrunk[:, rank_start : rank_start + rank]
            target = out_TN[:, column : column + width]
            if isinstance(rows, slice):
                target = target[rows]
                torch.addmm(target, part, b_PrN[position], out=target)
            else:
                # index_add_ on a slice of columns is four times slower than this.
                target.index_put_((rows,), torch.mm(part, b_PrN[position]), accumulate=True)
        rank_start += rank
        column += width


@dataclass(frozen=True, slots=True)
class Items:
    """Slots with few rows each, as one batched problem: P positions of the stacks with M padded rows each."""

    num_positions: int
    num_rows: int
    """Of the batch, from its first to the last that has an item."""
    gather: Tensor
    """[P * M] row of the batch that each padded row reads."""
    inverse: Tensor
    """For the batch's first rows, which padded row holds their result; P * M, a row of zeros, if none."""


class ItemScratch:
    """Buffers and views for one number of positions and padded rows, kept while steps look alike."""

    def __init__(self, num_positions: int, num_padded: int, like: Tensor) -> None:
        self.shape = (num_positions, num_padded)
        self._like = like
        self._inputs: dict[int, tuple[Tensor, Tensor]] = {}
        self._shrunk: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}
        self._deltas: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Tensor, list[Tensor]]] = {}

    def inputs(self, width: int) -> tuple[Tensor, Tensor]:
        """[P * M, K] and the same memory as [P, M, K]."""
        if width not in self._inputs:
            flat = self._like.new_empty(self.shape[1], width)
            self._inputs[width] = flat, flat.view(self.shape[0], -1, width)
        return self._inputs[width]

    def shrunk(self, ranks: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """[P, M, R] and its slice of each module."""
        if ranks not in self._shrunk:
            whole = self._like.new_empty(self.shape[0], self.shape[1] // self.shape[0], sum(ranks))
            self._shrunk[ranks] = whole, list(whole.split(ranks, dim=-1))
        return self._shrunk[ranks]

    def delta(self, ranks: tuple[int, ...], widths: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """Returns [P * M + 1, N], and of all but its last row each module's columns as [P, M, N_m].

        The last row is zero, and so are the columns of modules of rank 0: they are never written.
        """
        if (ranks, widths) not in self._deltas:
            whole = self._like.new_zeros(self.shape[1] + 1, sum(widths))
            of_module = whole[:-1].view(self.shape[0], -1, sum(widths)).split(widths, dim=-1)
            self._deltas[ranks, widths] = whole, list(of_module)
        return self._deltas[ranks, widths]


def add_items(
    x_TK: Tensor,
    stack: StackedGroup,
    items: Items,
    out_TN: Tensor,
    scratch: ItemScratch,
    sum_over_ranks: Callable[[Tensor], None] | None = None,
) -> None:
    """Semantics: as `add_segment`, for P slots at once."""
    x, x_PMK = scratch.inputs(x_TK.shape[1])
    torch.index_select(x_TK, 0, items.gather, out=x)
    shrunk, of_module = scratch.shrunk(stack.ranks)
    torch.bmm(x_PMK, stack.a_PKR, out=shrunk).mul_(stack.scale_P1R)
    if sum_over_ranks is not None:
        sum_over_ranks(shrunk)
    delta, delta_of_module = scratch.delta(stack.ranks, stack.widths)
    for rank, part, b_PrN, columns in zip(stack.ranks, of_module, stack.b_PrN, delta_of_module, strict=True):
        if rank:
            torch.bmm(part, b_PrN, out=columns)
    out_TN[: items.num_rows].add_(delta.index_select(0, items.inverse))
