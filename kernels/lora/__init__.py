"""Low-rank adapters beside a linear layer: any mix of adapters, ranks and base-only rows in one batch.

Semantics: for row t on slot s, module m of the group, with A stacked over the group's modules:
    out[t, columns of m] += scale[s, m] * (x[t] A[s]^T)[ranks of m] B[s, m]
Rows without a slot are not touched. What a slot's weights do, NaN and infinity included, stays in its own rows.
Source: Hu et al., "LoRA", arXiv 2106.09685; batching as in Chen et al., "Punica", arXiv 2310.18547.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.lora.reference import add_items, add_segment
from kernels.lora.stack import Residents, StackedGroup
from kernels.lora_work import LoraPool, LoraWork
from kernels.workspace import Workspace


class LoraContext:
    """The adapters of a running model: made once, told each step's rows by `begin`, applied by every layer."""

    def __init__(self, pool: LoraPool, device: torch.device | str = "cpu") -> None:
        self._pool = pool
        self._work = LoraWork()
        self._workspace = Workspace(device)
        self._residents = Residents()
        self._stacks: dict[tuple[int, str], StackedGroup] = {}
        self._gather = self._rows = torch.empty(0, dtype=torch.int64)
        self._kept: Tensor | None = None
        self._segments: list[tuple[int, slice | Tensor]] = []

    @property
    def active(self) -> bool:
        return self._work.active

    def begin(self, row_slots: npt.NDArray[np.integer]) -> None:
        """Before each step: the slot of every token of the flattened batch, `NO_SLOT` for the base alone."""
        self._work.build(np.asarray(row_slots))
        work, device = self._work, self._workspace.device
        self._segments = [(segment.slot, _as_index(segment.rows, device)) for segment in work.segments]
        if not work.item_slots:
            return
        versions = self._pool.versions
        positions = self._residents.place([(slot, versions[slot]) for slot in work.item_slots])
        # A resident that sits this step out still takes part in the product: it reads row 0, and is dropped.
        gather = np.zeros((self._residents.size, work.item_rows), dtype=np.int64)
        valid = np.zeros(gather.shape, dtype=np.bool_)
        gather[positions], valid[positions] = work.item_gather, work.item_valid
        self._gather = torch.from_numpy(gather.reshape(-1)).to(device)
        self._rows = torch.from_numpy(gather[valid]).to(device)
        self._kept = None if valid.all() else torch.from_numpy(np.flatnonzero(valid)).to(device)

    def apply(self, layer: int, group: str, x_TK: Tensor, out_TN: Tensor, widths: Sequence[int]) -> None:
        """Adds every row's adapter to `out_TN`, in place.

        Args:
            layer, group: which weights of the pool.
            x_TK: what the group's linears read, unquantised; T of `begin`, or more rows, which are ignored.
            out_TN: what the fused base linear wrote.
            widths: columns of each module of the group, in order; they sum to N.
        """
        if not self._work.active:
            return
        if sum(widths) != out_TN.shape[1] or x_TK.shape[0] != out_TN.shape[0]:
            raise ValueError(
                f"lora: x {tuple(x_TK.shape)}, out {tuple(out_TN.shape)}, widths {tuple(widths)}"
            )
        if x_TK.shape[0] < self._work.num_tokens:
            raise ValueError(f"lora: {x_TK.shape[0]} rows, but the step began with {self._work.num_tokens}")
        slots = self._pool.group(layer, group)
        for slot, rows in self._segments:
            weights = slots[slot]
            if weights is not None and weights.a is not None:
                add_segment(x_TK, weights, rows, out_TN, widths)
        if self._work.item_slots:
            stack = self._stacks.get((layer, group))
            if stack is None:
                stack = self._stacks[layer, group] = StackedGroup(widths)
            stack.refresh(self._residents, slots, x_TK)
            if any(stack.ranks):
                add_items(x_TK, stack, self._gather, self._rows, self._kept, out_TN, self._workspace)


def _as_index(rows: npt.NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """A prefill chunk is one run of rows: a view instead of a copy."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return torch.from_numpy(rows).to(device)
