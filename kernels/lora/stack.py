"""Stacks the adapters of the current rows side by side, so that one batched product serves them all.

A padded copy of the weights of slots that recently had rows in a step: a cache over the pool, which owns the
adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.lora_work import SlotGroup

Resident = tuple[int, int]
"""(slot, version of its weights)."""

SPARE = 4
"""Residents beyond those in use that are always kept."""
PATIENCE = 64
"""Steps in a row with more idle residents than used ones before they are dropped."""

MIN_RANK, RANK_STEP = 16, 8
"""Padding of ranks: products narrower than 12 go through BLAS kernels that sum in another order."""


class Residents:
    """Which slot's weights stand at which position of every stack; the same for all layers and groups."""

    def __init__(self) -> None:
        self.entries: list[Resident | None] = []
        self.generation = 0
        """Changes with `entries`: a stack built for another generation refreshes itself."""
        self._idle_steps = 0

    @property
    def size(self) -> int:
        return len(self.entries)

    def place(self, wanted: list[Resident]) -> list[int]:
        """Positions of the wanted slots; brings in those missing, drops the idle when they pile up."""
        where = {entry: index for index, entry in enumerate(self.entries)}
        missing = [entry for entry in wanted if entry not in where]
        crowded = len(self.entries) + len(missing) > 2 * len(wanted) + SPARE
        self._idle_steps = self._idle_steps + 1 if crowded else 0
        if self._idle_steps > PATIENCE:
            self.entries = list(wanted)
            self._idle_steps = 0
        elif missing:
            self._admit(missing, set(wanted))
        else:
            return [where[entry] for entry in wanted]
        self.generation += 1
        where = {entry: index for index, entry in enumerate(self.entries)}
        return [where[entry] for entry in wanted]

    def _admit(self, missing: list[Resident], wanted: set[Resident]) -> None:
        """Stale versions of the same slot go first; else the stacks grow."""
        replaced = {slot for slot, _ in missing}
        free = [
            index
            for index, entry in enumerate(self.entries)
            if entry is None or (entry[0] in replaced and entry not in wanted)
        ]
        for entry in missing:
            if free:
                self.entries[free.pop(0)] = entry
            else:
                self.entries.append(entry)
        for index in free:
            self.entries[index] = None


class StackedGroup:
    """One layer's group: the residents' weights, ranks padded with zeros to a common size."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = tuple(widths)
        self.ranks = (0,) * len(self.widths)
        """Per module, the padded rank; 0 where no resident has the module."""
        self.a_PKR = torch.empty(0)
        """Shrink weights, transposed; R is the sum of `ranks`."""
        self.b_PrN: list[Tensor] = []
        self.scale_P1R = torch.empty(0)
        self.holds: list[bool] = []
        """By position, whether the resident has any module of the group."""
        self.generation = -1
        """Of the residents, at the last refresh."""
        self._entries: list[Resident | None] = []

    def refresh(self, residents: Residents, slots: Sequence[SlotGroup | None], like: Tensor) -> None:
        """Makes the stack hold the residents; copies only what changed."""
        held = [None if entry is None else slots[entry[0]] for entry in residents.entries]
        ranks = tuple(
            _padded(max((group.ranks[module] for group in held if group is not None), default=0))
            for module in range(len(self.widths))
        )
        fits = all(have >= need for have, need in zip(self.ranks, ranks, strict=True))
        if len(residents.entries) != len(self._entries) or not fits:
            self._allocate(len(residents.entries), ranks, like)
        for position, (entry, group) in enumerate(zip(residents.entries, held, strict=True)):
            if entry != self._entries[position]:
                self._fill(position, group)
        self._entries = list(residents.entries)
        self.generation = residents.generation

    def _allocate(self, num_positions: int, ranks: tuple[int, ...], like: Tensor) -> None:
        self.ranks = ranks
        total = sum(ranks)
        self.a_PKR = like.new_zeros(num_positions, like.shape[1], total)
        self.b_PrN = [
            like.new_zeros(num_positions, rank, width) for rank, width in zip(ranks, self.widths, strict=True)
        ]
        self.scale_P1R = torch.zeros(num_positions, 1, total, device=like.device)
        self.holds = [False] * num_positions
        self._entries = [None] * num_positions

    def _fill(self, position: int, group: SlotGroup | None) -> None:
        self.a_PKR[position].zero_()
        self.scale_P1R[position].zero_()
        for b_PrN in self.b_PrN:
            b_PrN[position].zero_()
        self.holds[position] = group is not None and group.a is not None
        if group is None or group.a is None:
            return
        source, target = 0, 0
        for module, rank in enumerate(group.ranks):
            b = group.b[module]
            if rank:
                assert b is not None
                columns = slice(target, target + rank)
                self.a_PKR[position][:, columns].copy_(group.a[source : source + rank].t())
                self.b_PrN[module][position, :rank].copy_(b)
                self.scale_P1R[position, 0, columns].fill_(group.scales[module])
            source += rank
            target += self.ranks[module]


def _padded(rank: int) -> int:
    return max(MIN_RANK, -(-rank // RANK_STEP) * RANK_STEP) if rank else 0
