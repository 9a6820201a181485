"""Holds the keys and values of all layers in memory, in blocks.

`engine.kv_cache` tracks which request holds which block, in plain Python.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from engine.model.config import ModelConfig


class KVCache:
    """`layers`: `[num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]`; keys, then values.

    One head's keys of one block are contiguous: a sequence's cache is gathered as rows of block_size *
    head_dim numbers, in the order that batched products need. Block 0 is never written and stays zero.
    Whatever the model computes in, the cache may be `torch.float8_e4m3fn` on a GPU: half the bytes of bf16,
    twice as many tokens in the same memory. Values are stored without a scale, clamped to 448.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if dtype.itemsize == 1 and dtype != torch.float8_e4m3fn:
            raise ValueError(f"dtype must be a floating-point type or float8_e4m3fn, not {dtype}")
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is the null block), not {num_blocks}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (config.num_layers, num_blocks, 2, config.num_kv_heads, block_size, config.head_dim)
        self.layers = _zeros(shape, dtype, torch.device(device))

    @staticmethod
    def block_bytes(config: ModelConfig, block_size: int = 16, dtype: torch.dtype = torch.float32) -> int:
        """Returns the bytes of one block over all layers."""
        elements = config.num_layers * 2 * config.num_kv_heads * block_size * config.head_dim
        return elements * dtype.itemsize

    def clear(self, block_ids: Tensor) -> None:
        """Zeroes blocks in every layer, when their first slot is about to be written.

        Attention in torch reads whole blocks and weighs what lies beyond a sequence's end with zero; a NaN
        left by the previous owner would survive that. The kernels do not read there, so a GPU needs no
        clearing.
        """
        self.layers.index_fill_(1, block_ids, 0)

    def forget(self, block_ids: Tensor, places: Tensor) -> None:
        """Zeroes single tokens in every layer, given each one's block and its place in it; int64 [N]."""
        self.layers[:, block_ids, :, :, places] = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU in pages that the kernel zeroes at their first use: to write a gigabyte of zeros took most
    of an engine's start, and memory for blocks that no request used.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
