"""Keys and values of new tokens into the paged cache.

Semantics: cache[slot[t] // B, c, h, slot[t] % B] = kv[t, c, h], c = 0 keys, 1 values, B tokens per block
"""

from __future__ import annotations

from torch import Tensor

from kernels.kv_write.reference import kv_rows, kv_write_reference

__all__ = ["kv_rows", "kv_write"]


def kv_write(kv_T2HD: Tensor, rows_T2H: Tensor, cache_N2HBD: Tensor) -> None:
    """Semantics: see the module.

    Args:
        kv_T2HD: new keys (0) and values (1); may be a strided view of the fused projection.
        rows_T2H: int64, `kv_rows` of the step's slot mapping: the same for every layer, so computed once.
        cache_N2HBD: one layer's blocks, contiguous.
    """
    num_tokens, two, num_heads, head_dim = kv_T2HD.shape
    if two != 2 or rows_T2H.shape != (num_tokens, 2, num_heads):
        raise ValueError(f"kv_write: rows {tuple(rows_T2H.shape)} do not fit kv {tuple(kv_T2HD.shape)}")
    if cache_N2HBD.shape[1:3] != (2, num_heads) or cache_N2HBD.shape[4] != head_dim:
        raise ValueError(f"kv_write: cache {tuple(cache_N2HBD.shape)} does not fit kv {tuple(kv_T2HD.shape)}")
    kv_write_reference(kv_T2HD, rows_T2H, cache_N2HBD)
