"""Maps each slot to where its weights are in device memory: what the LoRA kernels look up.

The table (byte offsets, ranks and storage type by layer, group and slot) is at fixed addresses, so that
captured graphs see every change, and its entries are checked. The loader of an adapter writes its entries
before a row uses the slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_MODULES = 3
"""Linear modules that share an input: q, k and v."""
A, B, RANK_SCALES = 0, 1, 1 + MAX_MODULES
"""Columns of `offsets`: the stacked A; the B of modules 0 to 2; the fp32 factor of each rank row."""
DTYPE = MAX_MODULES
"""Column of `ranks` that says how the weights are stored."""
BF16, E4M3 = 0, 1
ALIGNMENT = 16
"""Bytes: of every matrix and vector in the arena. Kernels read 16 at a time."""
DEFAULT_MAX_RANK = 128


class AdapterTable:
    """Places and shapes of up to `num_slots` adapters; an empty slot has ranks of 0 everywhere.

    Of layer l, group g and slot s, with r_m the rank of module m and R their sum:
        A: [R, K], modules in order, absent ones left out; B of module m: [r_m, N_m], rank-major
        factors: fp32 [R], multiply the shrunk activations. For bf16 a module's LoRA scale, repeated;
        for e4m3 that times the scales of A's and B's row.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        groups: Sequence[str],
        device: torch.device | str,
        *,
        max_rank: int = DEFAULT_MAX_RANK,
    ) -> None:
        """`groups`: names, in the order of the second axis. `max_rank`: of one module; sizes scratch."""
        self.num_layers = num_layers
        self.num_slots = num_slots
        self.groups = tuple(groups)
        self.device = torch.device(device)
        self.max_rank = max_rank
        shape = (num_layers, len(self.groups), num_slots)
        self.offsets = torch.zeros((*shape, MAX_MODULES + 2), dtype=torch.int64, device=self.device)
        """[L, G, S, 5] bytes from the arena's start: A, B of module 0 to 2, factors."""
        self.ranks = torch.zeros((*shape, MAX_MODULES + 1), dtype=torch.int32, device=self.device)
        """[L, G, S, 4] rank of module 0 to 2 (0: absent), BF16 or E4M3."""
        self._arena: Tensor | None = None

    @property
    def arena(self) -> Tensor:
        """uint8, 1-D: all adapters' bytes. Set once."""
        assert self._arena is not None, "the table has no arena yet"
        return self._arena

    @arena.setter
    def arena(self, arena: Tensor) -> None:
        assert self._arena is None, "captured graphs hold the arena's address: it is set once"
        if arena.dtype != torch.uint8 or arena.dim() != 1 or arena.device.type != self.device.type:
            raise ValueError(f"arena: {arena.dtype} {tuple(arena.shape)} on {arena.device}")
        if arena.data_ptr() % ALIGNMENT or len(arena) % ALIGNMENT:
            raise ValueError(f"arena: address and size must be multiples of {ALIGNMENT}")
        self._arena = arena

    def group_index(self, group: str) -> int:
        """Returns the index of a group on the second axis."""
        return self.groups.index(group)

    def clear(self, slot: int) -> None:
        """Empties a slot. Queued on the current stream."""
        self.ranks[:, :, slot].zero_()

    def check(self, offsets_LG5: Tensor, ranks_LG4: Tensor) -> None:
        """Checks a slot's entries in host memory, before they are copied into `offsets` and `ranks`.

        Raises:
            ValueError: a rank or an offset that kernels cannot serve.
        """
        shape = (self.num_layers, len(self.groups))
        if offsets_LG5.shape != (*shape, MAX_MODULES + 2) or ranks_LG4.shape != (*shape, MAX_MODULES + 1):
            raise ValueError(f"slot: offsets {tuple(offsets_LG5.shape)}, ranks {tuple(ranks_LG4.shape)}")
        ranks, dtypes = ranks_LG4[..., :DTYPE], ranks_LG4[..., DTYPE]
        if bool((ranks < 0).any()) or bool((ranks > self.max_rank).any()):
            raise ValueError(f"slot: ranks must be 0 to {self.max_rank}, not up to {int(ranks.max())}")
        if bool(((dtypes != BF16) & (dtypes != E4M3)).any()):
            raise ValueError("slot: weights are stored neither as bf16 nor as e4m3")
        if bool((offsets_LG5 % ALIGNMENT != 0).any()):
            raise ValueError(f"slot: offsets must be multiples of {ALIGNMENT}")
        if bool((offsets_LG5 < 0).any()) or bool((offsets_LG5 > len(self.arena)).any()):
            raise ValueError("slot: offsets lie outside the arena")
