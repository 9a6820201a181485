"""Embeddings of a step's tokens, some of which the host does not know yet.

Semantics: out[t] = table[id - first], with id = ids[t] where ids[t] >= 0, else next_ids[rows[t]];
zeros where the table has no such row
"""

from __future__ import annotations

from torch import Tensor

from kernels.backend import uses_triton
from kernels.embedding.reference import embed_reference


def embed(
    ids_T: Tensor, rows_T: Tensor, next_ids_R: Tensor, table_VH: Tensor, out_TH: Tensor, first: int = 0
) -> Tensor:
    """Semantics: see the module.

    Args:
        ids_T: int32; -1 takes the token that the step before drew for the token's row, which never left the
            device.
        rows_T: int32, rows of the batch state.
        next_ids_R: int32, the last token drawn by each row; within the vocabulary whatever it holds.
        table_VH: contiguous; the whole vocabulary, or a part of it.
        first: the token of the table's first row.
    """
    num_tokens, hidden = out_TH.shape
    if ids_T.shape != (num_tokens,) or rows_T.shape != (num_tokens,) or table_VH.shape[1] != hidden:
        raise ValueError(
            f"embed: ids {tuple(ids_T.shape)}, rows {tuple(rows_T.shape)}, table {tuple(table_VH.shape)}, "
            f"out {tuple(out_TH.shape)}"
        )
    if uses_triton(out_TH):
        from kernels.embedding.kernel import embed_triton

        return embed_triton(ids_T, rows_T, next_ids_R, table_VH, out_TH, first)
    return embed_reference(ids_T, rows_T, next_ids_R, table_VH, out_TH, first)
