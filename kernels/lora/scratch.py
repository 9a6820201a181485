"""Where shrink leaves its partial sums for expand.

Owns the two buffers, sized for the largest bucket. Refuses to know which group uses them: what one group's
shrink wrote must have been expanded before the next one's begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora import tiling
from kernels.lora.table import MAX_MODULES, AdapterTable


class Scratch:
    """Partials of items, fp32 [places, chunks, rank_stride], and of tiles, [places, splits, rank_stride]."""

    def __init__(
        self, table: AdapterTable, max_tokens: int, widths_in: Sequence[int], batch_invariant: bool
    ) -> None:
        self.rank_stride = MAX_MODULES * table.max_rank
        buckets = (max_tokens, min(max_tokens, tiling.TILES_FROM))
        rows = max(tiling.max_item_rows(bucket, table.num_slots, batch_invariant) for bucket in buckets)
        of_items = rows * max(tiling.num_chunks(width) for width in widths_in)
        of_tiles = 0
        if tiling.uses_tiles(max_tokens, batch_invariant):
            of_tiles = max(max_tokens, min(8 * max_tokens, 2 * tiling.TILE_PROGRAMS * tiling.TILE_ROWS))
        self.of_items = torch.empty(of_items * self.rank_stride, device=table.device)
        self.of_tiles = torch.empty(of_tiles * self.rank_stride, device=table.device)

    @property
    def num_bytes(self) -> int:
        return 4 * (len(self.of_items) + len(self.of_tiles))
