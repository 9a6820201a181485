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

    Pairs are one or two rows of a slot with few, or of any in small buckets, blocks up to 16 rows of a slot
    with more, tiles up to 64 rows of a slot with more than 16 in buckets that have tiles.
    """

    def __init__(self, inputs: StepInputs, max_tokens: int, num_slots: int, batch_invariant: bool) -> None:
        self.max_tokens = max_tokens
        self._num_slots = num_slots
        self._batch_invariant = batch_invariant
        sizes = {min(max_tokens, size) for size in (tiling.MEDIUM_BUCKET, tiling.TILES_FROM, max_tokens)}
        self.most = tiling.WorkLimits(*map(max, zip(*map(self.limits, sizes), strict=True)))
        """Of any bucket."""
        self.counts = inputs.field("lora_counts", 3)
        """[pairs, blocks, tiles]"""
        self.order = inputs.field("lora_order", max_tokens)
        """Rows of the batch, those of a slot side by side."""
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
        self.active = bool(has_adapter.any())
        if not self.active:
            return
        if len(row_slots_T) <= tiling.TILES_FROM:
            self._build_few(row_slots_T.tolist())
            return
        rows = np.flatnonzero(has_adapter)
        slot_of = row_slots_T[rows]
        sort = np.argsort(slot_of, kind="stable")
        rows, slot_of = rows[sort], slot_of[sort]
        starts = np.flatnonzero(np.concatenate(([True], slot_of[1:] != slot_of[:-1])))
        counts = np.diff(starts, append=len(rows))
        slots = slot_of[starts]
        kinds = np.ones(len(slots), np.int8)
        if not self._batch_invariant:
            kinds[counts <= tiling.max_paired(len(row_slots_T))] = 0
            kinds[counts > tiling.BLOCK_ROWS] = 2
        by_kind = np.argsort(kinds, kind="stable")
        order = self.order.host
        order[: len(rows)] = rows[np.argsort(np.repeat(kinds, counts), kind="stable")]
        slots, counts = slots[by_kind], counts[by_kind]
        starts = np.cumsum(counts) - counts
        ends = [0, *np.cumsum(np.bincount(kinds, minlength=3)).tolist()]
        for kind, pieces, size in (
            (0, self.pairs, tiling.PAIR_ROWS),
            (1, self.blocks, tiling.BLOCK_ROWS),
            (2, self.tiles, tiling.TILE_ROWS),
        ):
            some = slice(ends[kind], ends[kind + 1])
            if some.start < some.stop:
                self.counts.host[kind] = _cut(pieces.host, slots[some], starts[some], counts[some], size)
        pairs = self.pairs.host[: self.counts.host[0]]
        pairs[:, 3] = order[pairs[:, 1]]
        pairs[:, 4] = order[pairs[:, 1] + pairs[:, 2] - 1]

    def _build_few(self, row_slots: list[int]) -> None:
        """As the rest of `build`, for buckets without tiles: to call numpy takes longer than to compute."""
        rows_of: dict[int, list[int]] = {}
        for row, slot in enumerate(row_slots):
            if slot >= 0:
                rows_of.setdefault(slot, []).append(row)
        most = 0 if self._batch_invariant else tiling.max_paired(len(row_slots))
        order: list[int] = []
        pairs: list[tuple[int, ...]] = []
        blocks: list[tuple[int, ...]] = []
        for slot, rows in sorted(rows_of.items()):
            is_paired, begin = len(rows) <= most, len(order)
            size = tiling.PAIR_ROWS if is_paired else tiling.BLOCK_ROWS
            for done in range(0, len(rows), size):
                piece = rows[done : done + size]
                if is_paired:
                    pairs.append((slot, begin + done, len(piece), piece[0], piece[-1]))
                else:
                    blocks.append((slot, begin + done, len(piece)))
            order += rows
        self.order.host[: len(order)] = order
        for kind, pieces, written in ((0, pairs, self.pairs), (1, blocks, self.blocks)):
            if pieces:
                written.host[: len(pieces), : len(pieces[0])] = pieces
                self.counts.host[kind] = len(pieces)


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
