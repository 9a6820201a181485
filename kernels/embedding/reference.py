"""Computes the embedding in torch: the definition of the op."""

from __future__ import annotations

import torch
from torch import Tensor


def embed_reference(
    ids_T: Tensor, rows_T: Tensor, next_ids_R: Tensor, table_VH: Tensor, out_TH: Tensor, first: int = 0
) -> Tensor:
    """Semantics: out[t] = table[id - first], with id = ids[t] where ids[t] >= 0, else next_ids[rows[t]];
    zeros where the table has no such row.
    """
    at_T = torch.where(ids_T >= 0, ids_T, next_ids_R[rows_T.long()]).long() - first
    is_here_T = (at_T >= 0) & (at_T < len(table_VH))
    torch.index_select(table_VH, 0, torch.where(is_here_T, at_T, 0), out=out_TH)
    return out_TH.masked_fill_(~is_here_T[:, None], 0)
