"""Holds the memory between the parts of shrink, and between shrink and expand, sized for the largest bucket.

What one group's shrink wrote must have been expanded before the next one's begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.lora import tiling
from kernels.lora.device_work import DeviceWork


class Scratch:
    """What launches leave for each other."""

    def __init__(
        self,
        work: DeviceWork,
        rank_stride: int,
        widths_in: Sequence[int],
        width_out: int,
        device: torch.device,
    ) -> None:
        """`width_out`: columns of the widest delta; 0 where none is computed."""
        self.rank_stride = rank_stride
        num_partials = work.most.split_rows * max(tiling.num_chunks(width) for width in widths_in)
        if work.most.tiles:
            most = min(tiling.MAX_SPLITS * work.max_tokens, 2 * tiling.TILE_PROGRAMS * tiling.TILE_ROWS)
            num_partials = max(num_partials, work.max_tokens, most)
        pieces = max(work.most.pairs, work.most.blocks, work.most.tiles, 1)
        self.shrunk = torch.empty((work.max_tokens, rank_stride), device=device)
        """fp32 [places, rank_stride]: what shrink hands to expand."""
        self.partials = torch.empty(num_partials * rank_stride, device=device)
        """fp32 [places, chunks, rank_stride], chunks by launch: within shrink."""
        self.counters = torch.zeros(pieces, dtype=torch.int32, device=device)
        """Chunks written, of each pair, block or tile; 0 between launches."""
        beside = tiling.MEDIUM_BUCKET if width_out else 0
        self.words = torch.zeros((1, beside, rank_stride), dtype=torch.int64, device=device)
        """Of `Mailbox`, from this GPU to itself; numbers begin at 1."""
        self.words_address = torch.tensor([self.words.data_ptr()], device=device)
        self.delta_memory = torch.empty(beside * width_out, device=device)

    @property
    def num_bytes(self) -> int:
        parts = (self.shrunk, self.partials, self.counters, self.words, self.delta_memory)
        return sum(part.numel() * part.element_size() for part in parts)

    def delta(self, num_rows: int, width: int) -> Tensor:
        """Returns fp32 [num_rows, width], the same memory for all groups."""
        return self.delta_memory[: num_rows * width].view(num_rows, width)
