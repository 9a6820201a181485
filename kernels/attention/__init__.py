"""Paged attention over a mixed batch: decoding rows and prefill chunks, grouped-query heads, causal.

Semantics: for token t of sequence s, query head h and its key head g = h // (Hq / Hkv):
    out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g], over positions p <= position[t]
where K[s, p, g] = cache[table[s, p // B], 0, g, p % B] and V the same with plane 1; and where asked for
    quantized_scale[t] = max |out[t]| / 448, quantized[t] = e4m3(out[t] / quantized_scale[t])
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.activation import quantize_rows
from kernels.attention.device_plan import AttentionGeometry, DevicePlan, DeviceStep
from kernels.attention.metadata import AttentionMetadata
from kernels.attention.plan import AttentionPlan
from kernels.attention.reference import paged_attention_reference

__all__ = [
    "AttentionGeometry",
    "AttentionMetadata",
    "AttentionPlan",
    "DevicePlan",
    "DeviceStep",
    "paged_attention",
]


def paged_attention(
    q_THD: Tensor,
    cache_NcHBD: Tensor,
    plan: AttentionPlan | DeviceStep,
    scale: float,
    out_THD: Tensor,
    *,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
) -> None:
    """Semantics: see the module. The step's own keys and values must already be in the cache.

    Args:
        q_THD: queries, rotated; rows may be strided.
        cache_NcHBD: one layer's blocks `[N, 2, Hkv, B, D]`, contiguous; e4m3 with a `DeviceStep` only. With
        an
            `AttentionPlan`, slots of a sequence's last block beyond its length must be finite (they are read,
            and multiplied by zero).
        plan: the same for every layer; decides between torch and the kernels. `AttentionPlan.build` of the
            step's metadata, or the bucket of a `DevicePlan` that has been filled.
        scale: usually 1 / sqrt(D).
        out_THD: written for every token of the step; of a bucket, what fills it up is left as it was.
        quantized: e4m3, `[T, Hq * D]`.
        quantized_scale_T: fp32, with `quantized`.

    Source: Kwon et al., "PagedAttention", arXiv 2309.06180; Ainslie et al., "GQA", arXiv 2305.13245.
    """
    num_tokens, num_heads, head_dim = q_THD.shape
    num_kv_heads, block_size = cache_NcHBD.shape[2:4]
    if out_THD.shape != q_THD.shape or num_tokens != plan.num_tokens:
        raise ValueError(
            f"attention: q {tuple(q_THD.shape)}, out {tuple(out_THD.shape)}, plan {plan.num_tokens}"
        )
    if num_heads % num_kv_heads or cache_NcHBD.shape[4] != head_dim:
        raise ValueError(f"attention: cache {tuple(cache_NcHBD.shape)} does not fit q {tuple(q_THD.shape)}")
    if (plan.num_kv_heads, plan.block_size) != (num_kv_heads, block_size):
        raise ValueError("attention: the plan was built for another cache")
    if (quantized is None) != (quantized_scale_T is None):
        raise ValueError("attention: quantised rows come with their scales")
    if quantized is not None and (
        quantized.shape != (num_tokens, num_heads * head_dim) or quantized.dtype != torch.float8_e4m3fn
    ):
        raise ValueError(f"attention: quantized {tuple(quantized.shape)} of {quantized.dtype}")
    if isinstance(plan, AttentionPlan):
        paged_attention_reference(q_THD, cache_NcHBD, plan, scale, out_THD)
        if quantized is not None and quantized_scale_T is not None:
            quantize_rows(out_THD.flatten(1), quantized, quantized_scale_T)
        return
    if (plan.num_heads, plan.head_dim) != (num_heads, head_dim) or not cache_NcHBD.is_contiguous():
        raise ValueError("attention: the plan was built for other heads")
    from kernels.attention.kernel import launch_attention  # Triton: the CPU engine never imports it

    launch_attention(q_THD, cache_NcHBD, plan, scale, out_THD, quantized, quantized_scale_T)
