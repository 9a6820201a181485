"""A step's rows grouped by adapter slot, as the kernels read them: lists in device memory.

Owns the lists and their layout. A slot's rows stand side by side in `order`; an item or a tile is a run of
them. Refuses to know weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.lora import tiling
from kernels.step_inputs import StepInputs

ITEM_FIELDS = 4
"""slot, first place in `order`, rows, whether it goes to the tensor cores."""

Ints = npt.NDArray[np.integer]


class DeviceWork:
    """Work lists for batches of up to `max_tokens` rows."""

    def __init__(self, inputs: StepInputs, max_tokens: int, num_slots: int, batch_invariant: bool) -> None:
        self.max_tokens = max_tokens
        self.num_slots = num_slots
        self.batch_invariant = batch_invariant
        buckets = {max_tokens, min(max_tokens, tiling.TILES_FROM)}
        items = max(tiling.max_items(bucket, num_slots, batch_invariant) for bucket in buckets)
        tiles = tiling.max_tiles(max_tokens, num_slots, batch_invariant)
        self.counts = inputs.field("lora_counts", 2)
        """[items, tiles]"""
        self.order = inputs.field("lora_order", max_tokens)
        """Rows of the batch: those of items by slot, then those of tiles by slot."""
        self.items = inputs.field("lora_items", (items, ITEM_FIELDS))
        self.tiles = inputs.field("lora_tiles", (max(tiles, 1), ITEM_FIELDS))
        self.active = False
        """Whether any row of the step has an adapter."""

    def max_items(self, bucket: int) -> int:
        """Items that a batch of this many rows can have at most."""
        return tiling.max_items(bucket, self.num_slots, self.batch_invariant)

    def max_tiles(self, bucket: int) -> int:
        """Likewise tiles."""
        return tiling.max_tiles(bucket, self.num_slots, self.batch_invariant)

    def build(self, row_slots_T: Ints) -> None:
        """Write a step's lists. T is the bucket; rows of the base alone and padding have negative slots."""
        if len(row_slots_T) > self.max_tokens:
            raise ValueError(f"lora: {len(row_slots_T)} rows, made for {self.max_tokens}")
        rows = np.flatnonzero(row_slots_T >= 0)
        self.active = bool(len(rows))
        if not self.active:
            self.counts.host[:] = 0
            return
        slot_of = row_slots_T[rows]
        sort = np.argsort(slot_of, kind="stable")
        rows, slot_of = rows[sort], slot_of[sort]
        starts = np.flatnonzero(np.concatenate(([True], slot_of[1:] != slot_of[:-1])))
        counts = np.diff(starts, append=len(rows))
        slots = slot_of[starts]
        many = counts > tiling.ITEM_ROWS
        if not tiling.uses_tiles(len(row_slots_T), self.batch_invariant) or not many.any():
            self.order.host[: len(rows)] = rows
            self._write(self.items.host, 0, slots, starts, counts)
            self.counts.host[1] = 0
            return
        last = np.argsort(np.repeat(many, counts), kind="stable")
        self.order.host[: len(rows)] = rows[last]
        few = ~many
        few_starts = np.cumsum(counts[few]) - counts[few]
        many_starts = counts[few].sum() + np.cumsum(counts[many]) - counts[many]
        self._write(self.items.host, 0, slots[few], few_starts, counts[few])
        self._write(self.tiles.host, 1, slots[many], many_starts, counts[many])

    def _write(self, pieces: npt.NDArray, kind: int, slots: Ints, starts: Ints, counts: Ints) -> None:
        """Cut every slot's rows into pieces of a size, write them and how many they are."""
        size = tiling.TILE_ROWS if kind else tiling.ITEM_ROWS
        per_slot = -(-counts // size)
        total = int(per_slot.sum())
        owner = np.repeat(np.arange(len(slots)), per_slot)
        done = (np.arange(total) - (np.cumsum(per_slot) - per_slot)[owner]) * size
        written = pieces[:total]
        written[:, 0] = slots[owner]
        written[:, 1] = starts[owner] + done
        written[:, 2] = np.minimum(counts[owner] - done, size)
        written[:, 3] = (counts[owner] > tiling.FEW_ROWS) | self.batch_invariant
        self.counts.host[kind] = total
