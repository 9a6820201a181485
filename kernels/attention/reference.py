"""Computes paged attention in torch: the CPU engine's path. `cases.naive_attention` states the same plainly.

Each tile becomes two batched matrix products over gathered blocks. The reductions are arranged so that a
token's result is the same bits in any tile: at least 4 rows per product and values summed in chunks of 128
keys (README).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.plan import AttentionPlan, Tile
from kernels.workspace import Workspace

MIN_ROWS = 4
"""Below this the BLAS switches to matrix-vector kernels, which sum in another order."""
VALUE_CHUNK = 128
"""Keys per product with V: the BLAS cuts longer reductions in places that depend on the length."""


def paged_attention_reference(
    q_THD: Tensor, cache_NcHBD: Tensor, plan: AttentionPlan, scale: float, out_THD: Tensor
) -> None:
    """Semantics: out[t, h] = sum_p softmax_p(q[t, h] . K[s, p, g] * scale) V[s, p, g], p <= position[t]."""
    for tile in plan.tiles:
        _attend(q_THD, cache_NcHBD, tile, scale, out_THD, plan.workspace)


def _attend(
    q_THD: Tensor, cache_NcHBD: Tensor, tile: Tile, scale: float, out_THD: Tensor, workspace: Workspace
) -> None:
    _, num_heads, head_dim = q_THD.shape
    num_kv_heads, block_size = cache_NcHBD.shape[2:4]
    seqs, queries, keys = tile.num_seqs, tile.num_queries, tile.num_keys
    shared = num_heads // num_kv_heads
    rows = queries * shared
    padded = max(rows, MIN_ROWS)
    batch = seqs * num_kv_heads

    take, dtype = workspace.take, q_THD.dtype
    gathered = take("attention.kv", (tile.gather.numel(), block_size * head_dim), dtype)
    torch.index_select(cache_NcHBD.view(-1, block_size * head_dim), 0, tile.gather, out=gathered)
    k, v = gathered.view(2, batch, keys, head_dim)

    q = q_THD[tile.rows].unflatten(1, (num_kv_heads, shared)).unflatten(0, (seqs, queries)).transpose(1, 2)
    stacked = take("attention.q", (seqs, num_kv_heads, padded, head_dim), dtype)
    if padded > rows:
        stacked[:, :, rows:].zero_()
    torch.mul(q, scale, out=stacked[:, :, :rows].unflatten(2, (queries, shared)))

    scores = take("attention.scores", (batch, padded, keys), dtype)
    torch.bmm(stacked.view(batch, padded, head_dim), k.transpose(1, 2), out=scores)
    seen = scores.view(seqs, num_kv_heads, padded, keys)[:, :, :rows].unflatten(2, (queries, shared))
    seen.add_(tile.mask)
    weights = torch.softmax(scores, -1, out=take("attention.weights", scores.shape, dtype))

    mixed = take("attention.out", (batch, padded, head_dim), dtype)
    torch.bmm(weights[:, :, :VALUE_CHUNK], v[:, :VALUE_CHUNK], out=mixed)
    for first in range(VALUE_CHUNK, keys, VALUE_CHUNK):
        mixed.baddbmm_(weights[:, :, first : first + VALUE_CHUNK], v[:, first : first + VALUE_CHUNK])
    result = mixed.view(seqs, num_kv_heads, padded, head_dim)[:, :, :rows]
    result = result.unflatten(2, (queries, shared)).transpose(1, 2)
    if isinstance(tile.rows, slice):
        out_THD[tile.rows].unflatten(1, (num_kv_heads, shared)).unflatten(0, (seqs, queries)).copy_(result)
    else:
        out_THD.index_copy_(0, tile.rows, result.reshape(seqs * queries, num_heads, head_dim))
