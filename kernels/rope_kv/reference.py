"""Rotates q and k and writes keys and values in torch: the definition of the op, and the CPU
engine's path.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.activation import AdapterDelta, true_rows


def kv_rows(slot_mapping_T: Tensor, num_heads: int, block_size: int) -> Tensor:
    """int64 [T, 2, H]: where each token's keys and values go, in the cache seen as `[N * 2 * H * B, D]`."""
    block_T, offset_T = slot_mapping_T // block_size, slot_mapping_T % block_size
    plane_2H = torch.arange(2 * num_heads, device=slot_mapping_T.device).view(2, num_heads)
    head_T2H = block_T.view(-1, 1, 1) * (2 * num_heads) + plane_2H
    return head_T2H * block_size + offset_T.view(-1, 1, 1)


def rope_kv_reference(
    qkv_TN: Tensor,
    rotary_T2D: Tensor,
    cache_N2HBD: Tensor,
    rows_T2H: Tensor,
    num_heads: int,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
    scale_T: Tensor | None,
    delta: AdapterDelta | None,
    parts_PTN: Tensor | None,
) -> Tensor:
    """Semantics: see the package. q and k are turned in place; returns q as [T, Hq, D]."""
    if scale_T is not None or delta is not None or parts_PTN is not None:
        qkv_TN.copy_(true_rows(qkv_TN, scale_T, delta, parts_PTN))
    num_kv_heads, head_dim = cache_N2HBD.shape[2], cache_N2HBD.shape[4]
    heads = qkv_TN.unflatten(1, (-1, head_dim))
    q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    if q_norm_D is not None and k_norm_D is not None:
        norm_heads(q, q_norm_D, eps)
        norm_heads(k, k_norm_D, eps)
    rope_reference(heads[:, : num_heads + num_kv_heads], rotary_T2D)
    kv_write_reference(heads[:, num_heads:].unflatten(1, (2, -1)), rows_T2H, cache_N2HBD)
    return q


def norm_heads(x_THD: Tensor, weight_D: Tensor, eps: float) -> None:
    """Semantics: x[t, h] = x[t, h] * rsqrt(mean(x[t, h]^2) + eps) * weight, in place, in fp32."""
    wide = x_THD.float()
    inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    if x_THD.dtype == torch.float32:
        x_THD.mul_(inverse).mul_(weight_D)
    else:
        x_THD.copy_(wide * inverse * weight_D)


def rope_reference(x_THD: Tensor, rotary_T2D: Tensor) -> Tensor:
    """Semantics: x[t,h,i] = x[t,h,i] * rotary[t,0,i] + x[t,h,(i + D/2) mod D] * rotary[t,1,i], in place."""
    cos_T1D, sin_T1D = rotary_T2D.to(x_THD.dtype).split(1, dim=1)
    swapped = torch.roll(x_THD, x_THD.shape[-1] // 2, -1)
    return x_THD.mul_(cos_T1D).addcmul_(swapped, sin_T1D)


def kv_write_reference(kv_T2HD: Tensor, rows_T2H: Tensor, cache_N2HBD: Tensor) -> None:
    """Semantics: cache[slot[t] // B, c, h, slot[t] % B] = kv[t, c, h]."""
    cache_N2HBD.view(-1, kv_T2HD.shape[-1]).index_put_((rows_T2H,), kv_T2HD)
