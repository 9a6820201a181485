"""Paged attention over a mixed batch: decoding rows and prefill chunks, grouped-query heads, causal.

Semantics: for token t of sequence s, query head h and its key head g = h // (Hq / Hkv):
    out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g], over positions p <= position[t]
where K[s, p, g] = cache[table[s, p // B], 0, g, p % B] and V the same with plane 1.
"""

from __future__ import annotations

from torch import Tensor

from kernels.attention.metadata import AttentionMetadata
from kernels.attention.plan import AttentionPlan
from kernels.attention.reference import paged_attention_reference

__all__ = ["AttentionMetadata", "AttentionPlan", "paged_attention"]


def paged_attention(
    q_THD: Tensor, cache_NcHBD: Tensor, plan: AttentionPlan, scale: float, out_THD: Tensor
) -> None:
    """Semantics: see the module. The step's own keys and values must already be in the cache.

    Args:
        q_THD: queries, rotated; rows may be strided.
        cache_NcHBD: one layer's blocks `[N, 2, Hkv, B, D]`, contiguous. Slots of a sequence's last block
            beyond its length must be finite (they are read, and multiplied by zero).
        plan: `AttentionPlan.build` of the step's metadata: the same for every layer.
        scale: usually 1 / sqrt(D).
        out_THD: written for every token of the plan.

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
    paged_attention_reference(q_THD, cache_NcHBD, plan, scale, out_THD)
