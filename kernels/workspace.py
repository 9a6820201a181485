"""Buffers that live from step to step, so that a forward pass allocates nothing once warm.

Owns growing scratch tensors by name. Refuses to know what they hold: a buffer's contents are whatever its
last user left, and two live tensors need two names.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named scratch tensors of one device; each grows to the largest size asked for and stays."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialised contiguous tensor; taking the same name again hands out the same memory."""
        numel = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < numel:
            buffer = torch.empty(numel, dtype=dtype, device=self.device)
            self._buffers[name, dtype] = buffer
        return buffer[:numel].view(shape)

    @property
    def num_bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())
