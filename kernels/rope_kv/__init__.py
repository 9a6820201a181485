"""From the fused projection to what attention reads: q rotated, k rotated and v in the paged cache.

Semantics: with y[t] = qkv[t] * scale[t] + delta[t], split into heads q, k, v of D numbers, for token t at
position p of the sequence whose block table is `table`:
    q[t, h], k[t, g] = y / sqrt(mean(y^2) + eps) * norm          each head, where the model has q/k norms
    x[i] = x[i] * rotary[p, 0, i] + x[(i + D/2) mod D] * rotary[p, 1, i]       x each head of q and k
    cache[table[p // B], 0, g, p % B] = k[t, g]        cache[table[p // B], 1, g, p % B] = v[t, g]
and q is what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.activation import AdapterDelta, check_parts
from kernels.rope_kv.reference import kv_rows, rope_kv_reference

__all__ = ["CacheRows", "Placement", "kv_rows", "rope_kv"]


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Where tokens' keys and values go, worked out once per step: what the torch path reads."""

    rows_T2H: Tensor
    """int64, `kv_rows` of the step's slot mapping."""


class Placement(Protocol):
    """Where tokens stand, worked out by the kernel: `kernels.attention.DeviceStep` is one."""

    @property
    def positions_T(self) -> Tensor:
        """int32; -1 for a token that only fills a bucket: nothing is written for it."""
        ...

    @property
    def rows_T(self) -> Tensor:
        """int32 [T]: the row of `tables_RB` that is the token's sequence."""
        ...

    @property
    def tables_RB(self) -> Tensor:
        """int32 block tables."""
        ...


def rope_kv(
    qkv_TN: Tensor,
    rotary: Tensor,
    cache_N2HBD: Tensor,
    where: CacheRows | Placement,
    num_heads: int,
    *,
    q_norm_D: Tensor | None = None,
    k_norm_D: Tensor | None = None,
    eps: float = 0.0,
    scale_T: Tensor | None = None,
    delta: AdapterDelta | None = None,
    parts_PTN: Tensor | None = None,
) -> Tensor:
    """Semantics: see the module. Arithmetic in fp32 on a GPU whatever the storage type, one rounding at the
    end.

    Args:
        qkv_TN: the fused projection, N = (Hq + 2 Hkv) D; q is rotated in place, and what is left of k and v
        is
            unspecified. Rows may be strided.
        rotary: fp32; plane 0 the cosines twice over, plane 1 the sines, negated in the first half. With
            `CacheRows` [T, 2, D], a row per token; with a `Placement` [positions, 2, D], read by position.
        cache_N2HBD: one layer's blocks `[N, 2, Hkv, B, D]`, contiguous. In e4m3, magnitudes are clamped to
        448.
        where: where each token stands; decides between torch and the kernel.
        num_heads: of q.
        q_norm_D, k_norm_D: weights of the per-head RMSNorm (Qwen3), both or neither.
        scale_T: fp32, the rows' scales where the projection left them divided.
        delta: `[T, N]`, what adapters add to the rows of `qkv_TN`.
        parts_PTN: fp32, contiguous, whose sum is read in place of `qkv_TN`.

    Returns:
        [T, Hq, D], a view of `qkv_TN`.

    Source: Su et al., "RoFormer", arXiv 2104.09864; Kwon et al., "PagedAttention", arXiv 2309.06180.
    """
    num_tokens, width = qkv_TN.shape
    two, num_kv_heads, head_dim = cache_N2HBD.shape[1], cache_N2HBD.shape[2], cache_N2HBD.shape[4]
    if two != 2 or width != (num_heads + 2 * num_kv_heads) * head_dim or not cache_N2HBD.is_contiguous():
        raise ValueError(
            f"rope_kv: cache {tuple(cache_N2HBD.shape)} does not fit"
            f" qkv {tuple(qkv_TN.shape)} of {num_heads} heads"
        )
    if (q_norm_D is None) != (k_norm_D is None):
        raise ValueError("rope_kv: q and k have norms, or neither has")
    if delta is not None:
        delta.check("rope_kv", qkv_TN)
    if parts_PTN is not None:
        check_parts("rope_kv", parts_PTN, qkv_TN)
    if isinstance(where, CacheRows):
        if rotary.shape != (num_tokens, 2, head_dim):
            raise ValueError(
                f"rope_kv: rotary {tuple(rotary.shape)} does not fit {num_tokens} tokens of {head_dim}"
            )
        if where.rows_T2H.shape != (num_tokens, 2, num_kv_heads):
            raise ValueError(f"rope_kv: rows {tuple(where.rows_T2H.shape)} do not fit {num_tokens} tokens")
        rows = where.rows_T2H
        return rope_kv_reference(
            qkv_TN, rotary, cache_N2HBD, rows, num_heads, q_norm_D, k_norm_D, eps, scale_T, delta, parts_PTN
        )
    if rotary.shape[1:] != (2, head_dim) or rotary.dtype != torch.float32:
        raise ValueError(f"rope_kv: rotary {tuple(rotary.shape)} of {rotary.dtype} for heads of {head_dim}")
    if len(where.positions_T) != num_tokens or len(where.rows_T) != num_tokens:
        raise ValueError(f"rope_kv: {len(where.positions_T)} positions for {num_tokens} tokens")
    from kernels.rope_kv.kernel import launch_rope_kv  # Triton: the CPU engine never imports it

    return launch_rope_kv(
        qkv_TN, rotary, cache_N2HBD, where, num_heads, q_norm_D, k_norm_D, eps, scale_T, delta, parts_PTN
    )
