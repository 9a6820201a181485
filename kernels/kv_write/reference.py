"""The KV write in torch: the meaning of the op, and the CPU engine's path."""

from __future__ import annotations

import torch
from torch import Tensor


def kv_rows(slot_mapping_T: Tensor, num_heads: int, block_size: int) -> Tensor:
    """int64 [T, 2, H]: where each token's keys and values go, in the cache seen as `[N * 2 * H * B, D]`."""
    block_T, offset_T = slot_mapping_T // block_size, slot_mapping_T % block_size
    plane_2H = torch.arange(2 * num_heads, device=slot_mapping_T.device).view(2, num_heads)
    head_T2H = block_T.view(-1, 1, 1) * (2 * num_heads) + plane_2H
    return head_T2H * block_size + offset_T.view(-1, 1, 1)


def kv_write_reference(kv_T2HD: Tensor, rows_T2H: Tensor, cache_N2HBD: Tensor) -> None:
    """Semantics: cache[slot[t] // B, c, h, slot[t] % B] = kv[t, c, h]."""
    cache_N2HBD.view(-1, kv_T2HD.shape[-1]).index_put_((rows_T2H,), kv_T2HD)
