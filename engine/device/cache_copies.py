"""Copies blocks of a KV cache in host memory to and from bytes, to move them between engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.model.cache import KVCache
from engine.prefill.copies import PIECE_BYTES
from engine.prefill.messages import SharedMemory


def block_bytes_view(kv: KVCache) -> Tensor:
    """Returns the cache as bytes: `[num_layers, num_blocks, bytes of a block in a layer]`."""
    layers = kv.layers
    return layers.view(layers.shape[0], layers.shape[1], -1).view(torch.uint8)


def blocks_per_piece(bytes_LBC: Tensor) -> int:
    """Returns how many blocks, of all layers, go into a message."""
    return max(1, PIECE_BYTES // (bytes_LBC.shape[0] * bytes_LBC.shape[2]))


def check_size(payload: Any, num_bytes: int) -> None:
    """Raises ValueError unless the payload has as many bytes as its blocks."""
    found = 0 if payload is None else memoryview(payload).nbytes
    if found != num_bytes:
        raise ValueError(f"its blocks have {num_bytes} bytes, and {found} came")


class HostPieces:
    """The pieces of one connection. What leaves is sent as bytes; what comes is kept until it is written."""

    is_shared = False

    def __init__(self, bytes_LBC: Tensor) -> None:
        self._bytes_LBC = bytes_LBC

    def share(self) -> None:
        """Returns None: host memory is not shared."""

    def fill(self, piece: int, block_ids: list[int], is_shared: bool) -> Any:
        assert not is_shared, "host memory is not shared"
        found = self._bytes_LBC.index_select(1, torch.tensor(block_ids))
        return memoryview(found.numpy()).cast("B")

    def stage(self, piece: int, num_blocks: int, payload: Any) -> Tensor:
        num_layers, _, num_bytes = self._bytes_LBC.shape
        check_size(payload, num_layers * num_blocks * num_bytes)
        staged = torch.empty((num_layers, num_blocks, num_bytes), dtype=torch.uint8)
        np.copyto(staged.view(-1).numpy(), np.frombuffer(payload, np.uint8))
        return staged

    def is_free(self, data: Tensor) -> bool:
        return True


class HostCacheCopies:
    """Copies blocks from and to a cache in host memory, where a step is over when its launch returns."""

    def __init__(self, kv: KVCache) -> None:
        self._bytes_LBC = block_bytes_view(kv)
        self.blocks_per_piece = blocks_per_piece(self._bytes_LBC)
        self.block_bytes = self._bytes_LBC.shape[0] * self._bytes_LBC.shape[2]

    def mark_launched(self) -> None:
        """Returns None: launched steps are over."""

    def is_over(self, mark: None) -> bool:
        return True

    def outgoing(self) -> HostPieces:
        return HostPieces(self._bytes_LBC)

    def incoming(self, shared: SharedMemory | None) -> HostPieces:
        return HostPieces(self._bytes_LBC)

    def follow_steps(self) -> None:
        """Does nothing: launched steps are over."""

    def write(self, block_ids: list[int], data: Tensor) -> None:
        self._bytes_LBC.index_copy_(1, torch.tensor(block_ids), data)

    def precede_steps(self) -> None:
        """Does nothing: what was written is there."""
