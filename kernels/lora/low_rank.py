"""What adapters add to a group's outputs, not added up yet: for ops that read those outputs anyway.

Owns the view of it that such an op gets. Refuses to know what the op does: `expand` would have read and
written the outputs once more than is needed, which at thousands of rows is most of its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.lora.table import BF16, DTYPE, MAX_MODULES, AdapterTable, B


@dataclass(frozen=True, slots=True)
class LowRank:
    """delta[t, columns of m] = shrunk[place of t, ranks of m] B[slot of t, m]; 0 for rows without a slot."""

    table: AdapterTable
    place: int
    """layer * number of groups + group."""
    shrunk: Tensor
    """fp32 [places, rank stride]"""
    slots_T: Tensor
    """int32, -1 for none."""
    places_T: Tensor
    """int32: where in `shrunk` a row is."""

    def delta(self, widths: Sequence[int]) -> Tensor:
        """fp32 [T, sum of widths], in torch."""
        delta = torch.zeros(len(self.slots_T), sum(widths), device=self.shrunk.device)
        table = self.table
        offsets = table.offsets.view(-1, *table.offsets.shape[2:])[self.place]
        ranks = table.ranks.view(-1, *table.ranks.shape[2:])[self.place]
        for slot in self.slots_T[self.slots_T >= 0].unique().tolist():
            rows = (self.slots_T == slot).nonzero()[:, 0]
            shrunk = self.shrunk[self.places_T[rows].long()]
            dtype = torch.bfloat16 if int(ranks[slot, DTYPE]) == BF16 else torch.float8_e4m3fn
            rank_start, column = 0, 0
            for module, (rank, width) in enumerate(
                zip(ranks[slot, :MAX_MODULES].tolist(), widths, strict=False)
            ):
                offset = int(offsets[slot, B + module])
                raw = table.arena[offset : offset + rank * width * dtype.itemsize]
                b = raw.view(dtype).view(rank, width).float()
                part = shrunk[:, rank_start : rank_start + rank]
                delta[rows, column : column + width] = part @ b if rank else 0.0
                rank_start += rank
                column += width
        return delta
