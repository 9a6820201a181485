"""Sorts a step's rows by adapter slot, as the kernels read them: lists in device memory.

A slot's rows are consecutive in `order`; a piece of work is a run of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.lora import tiling
from kernels.step_inputs import StepInputs

PAIR_FIELDS = 8
"""slot, first place in `order`, rows, the rows (twice the same if it is one), three unused."""
PIECE_FIELDS = 4
"""slot, first place in `order`, rows, one unused."""

Ints = npt.NDArray[np.integer]


class DeviceWork:
    """Work lists for batches of up to `max_tokens` rows.

    Pairs are slots with one or two rows, blocks up to 16 rows of a slot with more, tiles up to 64 rows of a
    slot with more than 16 in buckets that have tiles.
    """

    def __init__(self, inputs: StepInputs, max_tokens: int, num_slots: int, batch_invariant: bool) -> None:
        self.max_tokens = max_tokens
        self._num_slots = num_slots
        self._batch_invariant = batch_invariant
        small, large = self.limits(min(max_tokens, tiling.TILES_FROM)), self.limits(max_tokens)
        self.most = tiling.WorkLimits(*(max(pair) for pair in zip(small, large, strict=True)))
        """Of any bucket."""
        self.counts = inputs.field("lora_counts", 3)
        """[pairs, blocks, tiles]"""
        self.order = inputs.field("lora_order", max_tokens)
        """Rows of the batch: those of pairs by slot, then those of blocks, then those of tiles."""
        self.pairs = inputs.field("lora_pairs", (max(self.most.pairs, 1), PAIR_FIELDS))
        self.blocks = inputs.field("lora_blocks", (max(self.most.blocks, 1), PIECE_FIELDS))
        self.tiles = inputs.field("lora_tiles", (max(self.most.tiles, 1), PIECE_FIELDS))
        self.has_adapter = inputs.field("lora_has_adapter", min(max_tokens, tiling.MEDIUM_BUCKET))
        """By row of the batch, of the first ones: 1, or 0 for rows of the base alone and padding."""
        self.active = False
        """Whether any row of the step has an adapter."""

    def limits(self, bucket: int) -> tiling.WorkLimits:
        """Of what a batch of this many rows can have."""
        return tiling.limits(bucket, self._num_slots, self._batch_invariant)

    def build(self, row_slots_T: Ints) -> None:
        """Write a step's lists. T is the bucket; rows of the base alone and padding have negative slots."""
        if len(row_slots_T) > self.max_tokens:
            raise ValueError(f"lora: {len(row_slots_T)} rows, made for {self.max_tokens}")
        self.counts.host[:] = 0
        has_adapter = row_slots_T >= 0
        first = has_adapter[: len(self.has_adapter.host)]
        self.has_adapter.host[: len(first)] = first
        rows = np.flatnonzero(has_adapter)
        self.active = bool(len(rows))
        if not self.active:
            return
        slot_of = row_slots_T[rows]
        sort = np.argsort(slot_of, kind="stable")
        rows, slot_of = rows[sort], slot_of[sort]
        starts = np.flatnonzero(np.concatenate(([True], slot_of[1:] != slot_of[:-1])))
        counts = np.diff(starts, append=len(rows))
        slots = slot_of[starts]
        kinds = np.ones(len(slots), np.int8)
        if not self._batch_invariant:
            kinds[counts <= tiling.PAIR_ROWS] = 0
        if self.limits(len(row_slots_T)).tiles:
            kinds[counts > tiling.BLOCK_ROWS] = 2
        by_kind = np.argsort(kinds, kind="stable")
        order = self.order.host
        order[: len(rows)] = rows[np.argsort(np.repeat(kinds, counts), kind="stable")]
        slots, counts = slots[by_kind], counts[by_kind]
        starts = np.cumsum(counts) - counts
        ends = np.cumsum(np.bincount(kinds, minlength=3)).tolist()
        self._write_pairs(slots[: ends[0]], starts[: ends[0]], counts[: ends[0]])
        for kind, pieces, size in ((1, self.blocks, tiling.BLOCK_ROWS), (2, self.tiles, tiling.TILE_ROWS)):
            some = slice(ends[kind - 1], ends[kind])
            if some.start < some.stop:
                self.counts.host[kind] = _cut(pieces.host, slots[some], starts[some], counts[some], size)

    def _write_pairs(self, slots: Ints, starts: Ints, counts: Ints) -> None:
        self.counts.host[0] = len(slots)
        written = self.pairs.host[: len(slots)]
        written[:, 0], written[:, 1], written[:, 2] = slots, starts, counts
        written[:, 3] = self.order.host[starts]
        written[:, 4] = self.order.host[starts + counts - 1]


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
