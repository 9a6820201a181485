"""Memory between the parts of shrink, and between shrink and expand.

Owns the buffers, sized for the largest bucket. Refuses to know which group uses them: what one group's shrink
wrote must have been expanded before the next one's begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora import tiling
from kernels.lora.table import MAX_MODULES, AdapterTable


class Scratch:
    """What launches leave for each other."""

    def __init__(
        self, table: AdapterTable, max_tokens: int, widths_in: Sequence[int], batch_invariant: bool
    ) -> None:
        self.rank_stride = MAX_MODULES * table.max_rank
        buckets = (max_tokens, min(max_tokens, tiling.TILES_FROM))
        rows = max(tiling.max_item_rows(bucket, table.num_slots, batch_invariant) for bucket in buckets)
        items = max(tiling.max_items(bucket, table.num_slots, batch_invariant) for bucket in buckets)
        num_partials = rows * max(tiling.num_chunks(width) for width in widths_in)
        if tiling.uses_tiles(max_tokens, batch_invariant):
            most = min(tiling.MAX_SPLITS * max_tokens, 2 * tiling.TILE_PROGRAMS * tiling.TILE_ROWS)
            num_partials = max(num_partials, max_tokens, most)
        tiles = tiling.max_tiles(max_tokens, table.num_slots, batch_invariant)
        self.shrunk = torch.empty((max_tokens, self.rank_stride), device=table.device)
        """fp32 [places, rank_stride]: what shrink hands to expand."""
        self.partials = torch.empty(num_partials * self.rank_stride, device=table.device)
        """fp32 [places, chunks, rank_stride], chunks by launch: within shrink."""
        self.counters = torch.zeros(
            max(items, tiles), dtype=torch.int32, device=table.device
        )
        """Chunks written, of each item or tile; 0 between launches."""

    @property
    def num_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in (self.shrunk, self.partials, self.counters))
