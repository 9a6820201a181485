"""A step's rows grouped by adapter slot, as the kernels read them: lists in device memory.

Owns the lists and their layout. A slot's rows stand side by side in `order`; a piece of work is a run of
them. Refuses to know weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.lora import tiling
from kernels.step_inputs import StepInputs

PAIR_FIELDS = 8
"""slot, first place in `order`, rows, the rows themselves with the last one repeated up to 4, one unused."""
PIECE_FIELDS = 4
"""slot, first place in `order`, rows, one unused."""

Ints = npt.NDArray[np.integer]


class DeviceWork:
    """Work lists for batches of up to `max_tokens` rows.

    Pairs are pieces of slots with few rows, blocks of slots with more, tiles up to 64 rows of a slot with
    more than 16 in buckets that have tiles; `cutting` says how they are cut. What is on a list beyond its
    length has no rows.
    """

    def __init__(
        self,
        inputs: StepInputs,
        max_tokens: int,
        num_slots: int,
        batch_invariant: bool,
        cutting: tiling.Cutting = tiling.DECODING,
    ) -> None:
        self.max_tokens = max_tokens
        self._num_slots = num_slots
        self.cutting = cutting._replace(few_rows=0, tiles=False) if batch_invariant else cutting
        small, large = self.limits(min(max_tokens, tiling.TILES_FROM)), self.limits(max_tokens)
        self.most = tiling.Limits(*(max(pair) for pair in zip(small, large, strict=True)))
        """Of any bucket."""
        self.counts = inputs.field("lora_counts", 3)
        """[pairs, blocks, tiles]"""
        self.order = inputs.field("lora_order", max_tokens)
        """Rows of the batch: those of pairs by slot, then those of blocks, then those of tiles."""
        self.pairs = inputs.field("lora_pairs", (max(self.most.pairs, 1), PAIR_FIELDS))
        self.blocks = inputs.field("lora_blocks", (max(self.most.blocks, 1), PIECE_FIELDS))
        self.tiles = inputs.field("lora_tiles", (max(self.most.tiles, 1), PIECE_FIELDS))
        self.row_slots = inputs.field("lora_row_slots", max_tokens)
        """By row of the batch, -1 for none; written in buckets that have tiles, as is `row_places`."""
        self.row_places = inputs.field("lora_row_places", max_tokens)
        """By row of the batch: its place in `order`."""
        self.active = False
        """Whether any row of the step has an adapter."""

    def limits(self, bucket: int) -> tiling.Limits:
        """Of what a batch of this many rows can have."""
        return tiling.limits(bucket, self._num_slots, self.cutting)

    def build(self, row_slots_T: Ints) -> None:
        """Write a step's lists. T is the bucket; rows of the base alone and padding have negative slots."""
        if len(row_slots_T) > self.max_tokens:
            raise ValueError(f"lora: {len(row_slots_T)} rows, made for {self.max_tokens}")
        self.counts.host[:] = 0
        self.pairs.host[:, 2] = self.blocks.host[:, 2] = 0
        rows = np.flatnonzero(row_slots_T >= 0)
        self.active = bool(len(rows))
        self.row_slots.host[:] = -1
        if not self.active:
            return
        slot_of = row_slots_T[rows]
        sort = np.argsort(slot_of, kind="stable")
        rows, slot_of = rows[sort], slot_of[sort]
        starts = np.flatnonzero(np.concatenate(([True], slot_of[1:] != slot_of[:-1])))
        counts = np.diff(starts, append=len(rows))
        slots = slot_of[starts]
        kinds = np.ones(len(slots), np.int8)
        kinds[counts <= self.cutting.few_rows] = 0
        if self.limits(len(row_slots_T)).tiles:
            kinds[counts > tiling.BLOCK_ROWS] = 2
        by_kind = np.argsort(kinds, kind="stable")
        order = self.order.host
        order[: len(rows)] = rows[np.argsort(np.repeat(kinds, counts), kind="stable")]
        slots, counts = slots[by_kind], counts[by_kind]
        if self.limits(len(row_slots_T)).tiles:
            self.row_slots.host[: len(row_slots_T)] = row_slots_T
            self.row_places.host[order[: len(rows)]] = np.arange(len(rows))
        starts = np.cumsum(counts) - counts
        ends = np.cumsum(np.bincount(kinds, minlength=3)).tolist()
        sizes = (self.cutting.few_size, self.cutting.block_size, tiling.TILE_ROWS)
        for kind, (pieces, size) in enumerate(zip((self.pairs, self.blocks, self.tiles), sizes, strict=True)):
            some = slice(ends[kind - 1] if kind else 0, ends[kind])
            if some.start < some.stop:
                self.counts.host[kind] = _cut(pieces.host, slots[some], starts[some], counts[some], size)
        written = self.pairs.host[: self.counts.host[0]]
        for field in range(tiling.FEW_FIELDS):
            written[:, 3 + field] = order[written[:, 1] + np.minimum(field, written[:, 2] - 1)]


def _cut(pieces: npt.NDArray, slots: Ints, starts: Ints, counts: Ints, size: int) -> int:
    """Cuts every slot's rows into pieces of a size and writes them; how many they are."""
    per_slot = -(-counts // size)
    total = int(per_slot.sum())
    owner = np.repeat(np.arange(len(slots)), per_slot)
    done = (np.arange(total) - (np.cumsum(per_slot) - per_slot)[owner]) * size
    written = pieces[:total]
    written[:, 0], written[:, 1] = slots[owner], starts[owner] + done
    written[:, 2] = np.minimum(counts[owner] - done, size)
    return total
