"""Computes the embedding in torch: the definition of the op."""

from __future__ import annotations

import torch
from torch import Tensor


def embed_reference(
    ids_T: Tensor, rows_T: Tensor, next_ids_R: Tensor, table_VH: Tensor, out_TH: Tensor
) -> Tensor:
    """Semantics: out[t] = table[ids[t]] where ids[t] >= 0, else table[next_ids[rows[t]]]."""
    known_T = torch.where(ids_T >= 0, ids_T, next_ids_R[rows_T.long()])
    return torch.index_select(table_VH, 0, known_T.long(), out=out_TH)
