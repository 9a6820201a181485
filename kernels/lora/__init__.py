"""Low-rank adapters beside a linear layer: any mix of adapters, ranks and base-only rows in one batch.

Semantics: for row t on slot s, module m of the group, with A stacked over the group's modules:
    out[t, columns of m] += scale[s, m] * (x[t] A[s]^T)[ranks of m] B[s, m]
Rows without a slot keep their values. What a slot's weights do, NaN and infinity included, stays in its rows.
Source: Hu et al., "LoRA", arXiv 2106.09685; batching as in Chen et al., "Punica", arXiv 2310.18547.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.lora.reference import Items, ItemScratch, add_items, add_segment
from kernels.lora.stack import Resident, Residents, StackedGroup
from kernels.lora_work import LoraPool, LoraWork


class LoraContext:
    """The adapters of a running model: created once, given each step's rows, applied by every layer."""

    def __init__(
        self,
        pool: LoraPool,
        device: torch.device | str = "cpu",
        sum_over_ranks: Callable[[Tensor], None] | None = None,
    ) -> None:
        """`sum_over_ranks` replaces a tensor by its sum over the ranks of a tensor-parallel group, each of
        which has a part of every A's inputs.
        """
        self._pool = pool
        self._sum = sum_over_ranks
        self._device = torch.device(device)
        self._work = LoraWork()
        self._residents = Residents()
        self._stacks: dict[tuple[int, str], StackedGroup] = {}
        self._segments: list[tuple[int, slice | Tensor]] = []
        """(position in the stacks, rows)."""
        self._items: Items | None = None
        self._row_slots: npt.NDArray[np.integer] = np.empty(0, dtype=np.int64)
        self._placed: list[Resident] = []
        """Of the last step, which the next one often repeats."""
        self._scratch: ItemScratch | None = None
        self._shrinking: tuple[int, str, Tensor] | None = None

    @property
    def active(self) -> bool:
        """Whether any row of the step has an adapter."""
        return self._work.active

    def begin(self, row_slots: npt.NDArray[np.integer]) -> None:
        """Takes, before each step, the slot of every token of the flattened batch, `NO_SLOT` for the base
        alone.
        """
        work, versions = self._work, self._pool.versions
        row_slots = np.asarray(row_slots)
        same_rows = np.array_equal(row_slots, self._row_slots)
        if same_rows and all(versions[slot] == version for slot, version in self._placed):
            return
        self._row_slots = row_slots.copy()
        self._placed = []
        work.build(row_slots)
        if not work.active:
            return
        slots = work.item_slots + [segment.slot for segment in work.segments]
        self._placed = [(slot, versions[slot]) for slot in slots]
        positions = self._residents.place(self._placed)
        num_items = len(work.item_slots)
        self._segments = [
            (position, _as_index(segment.rows, self._device))
            for position, segment in zip(positions[num_items:], work.segments, strict=True)
        ]
        self._items = self._place_items(positions[:num_items]) if num_items else None

    def _place_items(self, positions: list[int]) -> Items:
        work = self._work
        # A resident that sits this step out still takes part in the product: it reads row 0, and is dropped.
        gather = np.zeros((self._residents.size, work.item_rows), dtype=np.int64)
        valid = np.zeros(gather.shape, dtype=np.bool_)
        gather[positions], valid[positions] = work.item_gather, work.item_valid
        # Decoding rows come first, so the rows up to the last one that has an item are few.
        rows = gather[valid]
        inverse = np.full(int(rows.max()) + 1, gather.size, dtype=np.int64)
        inverse[rows] = np.flatnonzero(valid)
        return Items(
            num_positions=self._residents.size,
            num_rows=len(inverse),
            gather=torch.from_numpy(gather.reshape(-1)).to(self._device),
            inverse=torch.from_numpy(inverse).to(self._device),
        )

    def shrink(self, layer: int, group: str, x_TK: Tensor) -> None:
        """Takes what the group's linears read, before or while the base is computed.

        On a CPU nothing is to be won by starting early: `x_TK` is remembered, and must stay until `expand`.

        Args:
            layer, group: which weights of the pool.
            x_TK: unquantised; T of `begin`, or more rows, which are ignored.
        """
        self._shrinking = (layer, group, x_TK) if self._work.active else None

    def expand(
        self,
        layer: int,
        group: str,
        out_TN: Tensor,
        widths: Sequence[int],
        scale_T: Tensor | None = None,
    ) -> None:
        """Adds every row's adapter to `out_TN`, in place; follows `shrink` of the same group.

        Args:
            out_TN: what the fused base linear wrote.
            widths: columns of each module of the group, in order; they sum to N.
            scale_T: fp32; what is added to a row is divided by it.
        """
        if self._shrinking is None:
            return
        *place, x_TK = self._shrinking
        assert place == [layer, group], f"expand of {layer, group} after shrink of {place}"
        self._shrinking = None
        if scale_T is None:
            self._add(layer, group, x_TK, out_TN, widths)
            return
        delta_TN = torch.zeros_like(out_TN)
        self._add(layer, group, x_TK, delta_TN, widths)
        num_tokens = self._work.num_tokens
        out_TN[:num_tokens].add_(delta_TN[:num_tokens].div_(scale_T[:num_tokens, None]))

    def _add(self, layer: int, group: str, x_TK: Tensor, out_TN: Tensor, widths: Sequence[int]) -> None:
        if sum(widths) != out_TN.shape[1] or x_TK.shape[0] != out_TN.shape[0]:
            raise ValueError(
                f"lora: x {tuple(x_TK.shape)}, out {tuple(out_TN.shape)}, widths {tuple(widths)}"
            )
        if x_TK.shape[0] < self._work.num_tokens:
            raise ValueError(f"lora: {x_TK.shape[0]} rows, but the step began with {self._work.num_tokens}")
        stack = self._stacks.get((layer, group))
        if stack is None:
            stack = self._stacks[layer, group] = StackedGroup(widths)
        if stack.generation != self._residents.generation:
            stack.refresh(self._residents, self._pool.group(layer, group), x_TK)
        if not any(stack.ranks):
            return
        for position, rows in self._segments:
            if stack.holds[position]:
                add_segment(x_TK, stack, position, rows, out_TN, self._sum)
        if self._items is not None:
            add_items(x_TK, stack, self._items, out_TN, self._scratch_for(self._items, x_TK), self._sum)

    def _scratch_for(self, items: Items, like: Tensor) -> ItemScratch:
        shape = (items.num_positions, len(items.gather))
        if self._scratch is None or self._scratch.shape != shape:
            self._scratch = ItemScratch(*shape, like)
        return self._scratch


def _as_index(rows: npt.NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """A prefill chunk is one run of rows: a view instead of a copy."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return torch.from_numpy(rows).to(device)
