"""Sends each step's inputs from host to device: many small arrays, one copy, no waiting.

One block of device memory at fixed addresses (so that captured graphs may read it), a ring of pinned host
blocks of the same layout, and the copy between them. A host block is written again only once the copy that
read it has ended, so the host may be as many steps ahead as the ring is deep.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 64
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32, torch.uint8: np.uint8}


class Field:
    """One array: written through `host`, read by kernels through `device`."""

    __slots__ = ("_hosts", "_inputs", "device", "dtype", "name", "offset", "shape")

    def __init__(
        self, inputs: StepInputs, name: str, shape: tuple[int, ...], dtype: torch.dtype, offset: int
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.offset = offset
        self.device: Tensor
        """Valid after `freeze`; never moves."""
        self._inputs = inputs
        self._hosts: list[npt.NDArray] = []

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def host(self) -> npt.NDArray:
        """The array of the step being prepared; holds whatever an earlier step left."""
        return self._hosts[self._inputs.turn]


class StepInputs:
    """Registers fields, then `freeze`, then per step: `begin`, write fields, `send`."""

    def __init__(self, device: torch.device | str, depth: int = 2) -> None:
        """`depth`: host blocks."""
        self._device = torch.device(device)
        self._depth = depth
        self._fields: list[Field] = []
        self._size = 0
        self._blocks: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self.turn = 0

    def field(self, name: str, shape: int | tuple[int, ...], dtype: torch.dtype = torch.int32) -> Field:
        """Reserves room for an array. Only before `freeze`."""
        assert not self._blocks, "the layout is frozen"
        made = Field(self, name, (shape,) if isinstance(shape, int) else shape, dtype, self._size)
        self._size += -(-made.num_bytes // ALIGNMENT) * ALIGNMENT
        self._fields.append(made)
        return made

    def freeze(self) -> None:
        """Allocates everything, as zeros."""
        assert not self._blocks, "frozen twice"
        on_gpu = self._device.type == "cuda"
        there = torch.zeros(max(self._size, ALIGNMENT), dtype=torch.uint8, device=self._device)
        self._there = there
        self._blocks = [
            torch.zeros(there.shape, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(self._depth)
        ]
        self._copied = [torch.cuda.Event() for _ in range(self._depth)] if on_gpu else []
        for made in self._fields:
            end = made.offset + made.num_bytes
            made.device = there[made.offset : end].view(made.dtype).view(made.shape)
            made._hosts = [
                block[made.offset : end].numpy().view(_NUMPY[made.dtype]).reshape(made.shape)
                for block in self._blocks
            ]

    def begin(self) -> None:
        """Starts to prepare a step: from here `host` is the next block. Waits only if the ring is full."""
        self.turn = (self.turn + 1) % self._depth
        if self._copied:
            self._copied[self.turn].synchronize()

    def send(self) -> None:
        """Queues the copy of all fields on the current stream."""
        self._there.copy_(self._blocks[self.turn], non_blocking=True)
        if self._copied:
            self._copied[self.turn].record()

    @property
    def num_bytes(self) -> int:
        return self._size
