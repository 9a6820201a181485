"""Reuses buffers from step to step, so that a forward pass allocates nothing once warm.

Scratch tensors grow by name; a buffer's contents are whatever its last user left, and two live tensors need
two names.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_VIEWS = 512
"""Views kept ready: decoding steps take the same ones again and again, prefill steps hardly ever."""


class Workspace:
    """Named scratch tensors of one device; each grows to the largest size requested and stays."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns an uninitialised contiguous tensor; taking the same name again returns the same memory."""
        view = self._views.get((name, shape, dtype))
        if view is None:
            view = self._views[name, shape, dtype] = self._view(name, shape, dtype)
        return view

    def _view(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        numel = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < numel:
            buffer = self._buffers[name, dtype] = self._allocate(numel, dtype)
            self._views.clear()  # some are of the buffer it replaces
        elif len(self._views) >= MAX_VIEWS:
            self._views.clear()
        return buffer[:numel].view(shape)

    def _allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numel, dtype=dtype, device=self.device)

    @property
    def num_bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())
