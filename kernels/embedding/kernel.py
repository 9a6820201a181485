"""Computes the embedding in Triton: one program per token and stretch of the hidden size."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.compilation import Compilation

BLOCK = 1024
"""Columns of a program: 2 KB of bf16, one 16-byte load for each of 128 threads."""


@triton.jit
def embed_kernel(
    ids_ptr, rows_ptr, next_ids_ptr, table_ptr, out_ptr, hidden, first, num_ids, BLOCK: tl.constexpr
):
    """Semantics: out[t, h] = table[id - first, h], with id = ids[t] >= 0 ? ids[t] : next_ids[rows[t]]; 0
    where id - first is outside [0, num_ids).

    Shapes: ids_T, rows_T, next_ids_R int32; table_VH, out_TH of one float type. Grid: (T, H / BLOCK).
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token_id = tl.load(ids_ptr + token)
    if token_id < 0:
        token_id = tl.load(next_ids_ptr + tl.load(rows_ptr + token))
    inside = columns < hidden
    at = token_id.to(tl.int64) - first
    is_here = (at >= 0) & (at < num_ids)
    row = tl.load(table_ptr + at * hidden + columns, mask=inside & is_here, other=0.0)
    tl.store(out_ptr + token * hidden + columns, row, mask=inside)


def embed_triton(
    ids_T: Tensor, rows_T: Tensor, next_ids_R: Tensor, table_VH: Tensor, out_TH: Tensor, first: int = 0
) -> Tensor:
    """As `embed_reference`."""
    num_tokens, hidden = out_TH.shape
    grid = (num_tokens, triton.cdiv(hidden, BLOCK))
    embed_kernel[grid](
        ids_T,
        rows_T,
        next_ids_R,
        table_VH,
        out_TH,
        hidden,
        first,
        len(table_VH),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return out_TH


COMPILATIONS = [
    Compilation(
        embed_kernel,
        {
            "ids_ptr": "*i32",
            "rows_ptr": "*i32",
            "next_ids_ptr": "*i32",
            "table_ptr": f"*{dtype}",
            "out_ptr": f"*{dtype}",
            "hidden": "i32",
            "first": "i32",
            "num_ids": "i32",
        },
        {"BLOCK": BLOCK},
    )
    for dtype in ("bf16", "fp32")
]
