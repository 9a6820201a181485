"""Builds inputs for the tests of LoRA on a CPU, and states plainly what it computes.

Those of the device path are in `device_cases`, the benchmarks in `benches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.lora.benches import BENCHES as BENCHES
from kernels.lora_work import NO_SLOT, SlotGroup


def random_group(
    ranks: Sequence[int], scales: Sequence[float], width_in: int, widths: Sequence[int], seed: int
) -> SlotGroup | None:
    """One adapter's share of a group; rank 0 leaves a module out."""
    if not any(ranks):
        return None
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(sum(ranks), width_in, generator=generator) / width_in**0.5
    b = tuple(
        torch.randn(rank, width, generator=generator) if rank else None
        for rank, width in zip(ranks, widths, strict=True)
    )
    return SlotGroup(a, b, tuple(ranks), tuple(scales))


@dataclass
class ListPool:
    """A pool that is nothing but lists: `groups[layer, group]` by slot."""

    groups: dict[tuple[int, str], list[SlotGroup | None]]
    versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.versions:
            self.versions = [1] * max(len(slots) for slots in self.groups.values())

    def group(self, layer: int, group: str) -> list[SlotGroup | None]:
        return self.groups[layer, group]


@dataclass(frozen=True)
class Case:
    """`ranks`: per slot, per module of the group. `row_slots`: per row of the batch."""

    width_in: int
    widths: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    row_slots: tuple[int, ...]

    def pool(self) -> ListPool:
        slots = [
            random_group(
                ranks,
                [0.5 + 0.25 * (slot + module) for module in range(len(ranks))],
                self.width_in,
                self.widths,
                slot,
            )
            for slot, ranks in enumerate(self.ranks)
        ]
        return ListPool({(0, "group"): slots})

    def inputs(self) -> tuple[Tensor, Tensor]:
        """(x_TK, what the base wrote)."""
        generator = torch.Generator().manual_seed(len(self.row_slots))
        x = torch.randn(len(self.row_slots), self.width_in, generator=generator)
        base = torch.randn(len(self.row_slots), sum(self.widths), generator=generator)
        return x, base


def naive_lora(
    x_TK: Tensor,
    base_TN: Tensor,
    slots: Sequence[SlotGroup | None],
    row_slots: Sequence[int],
    widths: Sequence[int],
) -> Tensor:
    """Semantics: as `LoraContext`; one row and one module at a time, in double precision."""
    out = base_TN.double()
    for row, slot in enumerate(row_slots):
        weights = slots[slot] if slot != NO_SLOT else None
        if weights is None or weights.a is None:
            continue
        rank_start, column = 0, 0
        for rank, scale, b, width in zip(weights.ranks, weights.scales, weights.b, widths, strict=True):
            if b is not None:
                shrunk = weights.a[rank_start : rank_start + rank].double() @ x_TK[row].double()
                out[row, column : column + width] += scale * (shrunk @ b.double())
            rank_start += rank
            column += width
    return out


def _mixed_rows(num_rows: int, num_slots: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(NO_SLOT, num_slots, num_rows).tolist())


CASES = [
    Case(64, (48,), ((4,),), (0,)),
    Case(64, (48,), ((4,), (8,)), (NO_SLOT,) * 3),
    Case(64, (32, 16, 16), ((4, 4, 4), (8, 0, 16), (0, 0, 0), (0, 3, 0)), (0, 1, 2, 3, NO_SLOT, 1)),
    Case(256, (704, 704), ((16, 16), (8, 8), (16, 0), (32, 64)), _mixed_rows(32, 4, 1)),
    Case(96, (40,), ((1,), (5,), (64,), (16,)), (0,) * 20 + (1, 3, 3, NO_SLOT) + (2,) * 11),
    Case(64, (24, 40), ((4, 8), (8, 4)), (0, 1) * 12),
    Case(64, (32, 32), tuple((4 + slot, 8) for slot in range(32)), tuple(range(32))),
]
