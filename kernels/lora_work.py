"""Sorts a step's rows by adapter slot, and defines what an adapter looks like to a kernel.

The grouping of a flattened batch is rebuilt every step on the host; all LoRA kernels read the same view of
one adapter's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

NO_SLOT = -1
"""Row that runs the base alone."""

MAX_ITEM_ROWS = 8
"""Rows of a slot up to which it shares one batched product with others; with more it has its own."""
ROW_STEP = 4
"""Items are padded to a multiple of this: BLAS sums fewer rows in another order."""


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """One adapter's share of one group of modules in one layer: views, at true ranks, no padding."""

    a: Tensor | None
    """[sum of ranks, K], the modules' A matrices concatenated along rank; None when no module has one."""
    b: tuple[Tensor | None, ...]
    """Per module [rank, N], rank-major; None when the adapter lacks the module."""
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    """Per module; applied in fp32 to the shrunk activations, never folded into the weights."""


class LoraPool(Protocol):
    """What kernels need of the pool of resident adapters."""

    @property
    def versions(self) -> Sequence[int]:
        """Per slot; changes whenever the slot's weights do."""
        ...

    def group(self, layer: int, group: str) -> Sequence[SlotGroup | None]:
        """Returns views by slot; None where the slot is empty or its adapter has nothing here."""
        ...


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one slot, enough of them to be worth a product of their own."""

    slot: int
    rows: npt.NDArray[np.int64]


class LoraWork:
    """One step's rows grouped by slot.

    Items are slots with few rows, all padded to `item_rows` rows so that one batched product serves them.
    Padding repeats a row of the same item, so an item never reads another tenant's row. Segments are slots
    with many rows.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self.segments: list[Segment] = []
        self.item_slots: list[int] = []
        self.item_rows = 0
        self.item_gather: npt.NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)
        """[items, item_rows] rows of the batch, padded."""
        self.item_valid: npt.NDArray[np.bool_] = np.empty((0, 0), dtype=np.bool_)
        """[items, item_rows] False where padded."""

    @property
    def active(self) -> bool:
        """Whether any row of the step has an adapter."""
        return bool(self.segments or self.item_slots)

    def build(self, row_slots: npt.NDArray[np.integer]) -> None:
        """Groups the step's tokens by slot.

        Args:
            row_slots: [T] slot of each token of the flattened batch, `NO_SLOT` for the base alone.
        """
        self.num_tokens = len(row_slots)
        self.segments, self.item_slots, self.item_rows = [], [], 0
        rows = np.flatnonzero(row_slots != NO_SLOT)
        if not len(rows):
            return
        rows = rows[np.argsort(row_slots[rows], kind="stable")]
        slots, starts, counts = np.unique(row_slots[rows], return_index=True, return_counts=True)
        few = counts <= MAX_ITEM_ROWS
        self.segments = [
            Segment(int(slot), rows[start : start + count])
            for slot, start, count in zip(slots[~few], starts[~few], counts[~few], strict=True)
        ]
        if few.any():
            self._build_items(rows, slots[few], starts[few], counts[few])

    def _build_items(
        self,
        rows: npt.NDArray[np.int64],
        slots: npt.NDArray[np.integer],
        starts: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
    ) -> None:
        self.item_slots = slots.tolist()
        self.item_rows = -(-int(counts.max()) // ROW_STEP) * ROW_STEP
        index = np.arange(self.item_rows)
        self.item_valid = index < counts[:, None]
        self.item_gather = rows[starts[:, None] + np.minimum(index, counts[:, None] - 1)]
