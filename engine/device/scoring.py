"""Computes log-probabilities of known tokens from the hidden states of a step.

Selects the hidden states that a plan's scores need, computes the head product in chunks of bounded memory,
and reads the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.batch import Scored
from engine.device.batch_state import BatchState, Ints
from engine.protocol import TokenLogprob, TopLogprob
from kernels import sampling as ops

CHUNK_LOGITS = 1 << 22
"""Logits at a time on a CPU: 16 MB, and twice that while they become log-probabilities."""


class ScoreRequests(NamedTuple):
    """A step's scores, those of one row after those of another."""

    at_N: Ints
    """Rows of the step's hidden states."""
    targets_N: Ints
    """The token that follows each: the one to score."""
    lens: list[int]
    """By entry of the plan: how many of the N belong to it."""
    num_tops: list[int]

    @property
    def most_tops(self) -> int:
        return max(self.num_tops)


def score_requests(
    scored: Sequence[Scored], state: BatchState, rows: Ints, query_lens: Ints
) -> ScoreRequests:
    """Returns what a plan scores, before the state advances.

    Args:
        rows, query_lens: what the step computes, in the order of its hidden states.
    """
    starts = query_lens.cumsum() - query_lens
    # Where a row's position 0 would be, if the step computed it.
    origins = dict(zip(rows.tolist(), (starts - state.computed_len[rows]).tolist(), strict=True))
    spans = [np.arange(share.first - 1, share.first - 1 + share.num_tokens) for share in scored]
    at = [origins[share.row] + span for share, span in zip(scored, spans, strict=True)]
    targets = [state.tokens[share.row, span + 1] for share, span in zip(scored, spans, strict=True)]
    assert all(len(ids) == share.num_tokens for ids, share in zip(targets, scored, strict=True))
    return ScoreRequests(
        np.concatenate(at),
        np.concatenate(targets).astype(np.int64),
        [share.num_tokens for share in scored],
        [share.num_tops for share in scored],
    )


def score(
    logits_of: Callable[[Tensor], Tensor],
    hidden_TH: Tensor,
    at_N: Tensor,
    targets_N: Tensor,
    num_tops: int,
    chunk_rows: int,
) -> Tensor:
    """Returns [N, 1 + 2 K] fp32: the target's log-probability, the K largest, the bits of their ids as int32.

    Args:
        logits_of: the model's head; its next call may overwrite what it returned.
        at_N, targets_N: int64, rows of `hidden_TH` and the tokens that follow them.
        chunk_rows: how many rows have logits at a time.
    """
    table_NW = hidden_TH.new_empty((len(at_N), 1 + 2 * num_tops), dtype=torch.float32)
    for begin in range(0, len(at_N), chunk_rows):
        piece = slice(begin, begin + chunk_rows)
        logits_PV = logits_of(hidden_TH.index_select(0, at_N[piece]))
        chosen_P, top_PK, top_ids_PK = ops.logprobs(logits_PV, targets_N[piece], num_tops)
        table_NW[piece, 0] = chosen_P
        table_NW[piece, 1 : 1 + num_tops] = top_PK
        table_NW[piece, 1 + num_tops :] = top_ids_PK.int().view(torch.float32)
    return table_NW


def rows_per_chunk(vocab_size: int) -> int:
    """Returns the rows of a chunk on a CPU."""
    return max(1, CHUNK_LOGITS // vocab_size)


def read(table_NW: Tensor, requests: ScoreRequests) -> list[list[TokenLogprob] | None]:
    """Returns scores by entry of the plan; None where the logits were not finite."""
    found: list[list[TokenLogprob] | None] = []
    begin, num_columns = 0, table_NW.shape[1] // 2
    for num_tokens, num_tops in zip(requests.lens, requests.num_tops, strict=True):
        span = slice(begin, begin + num_tokens)
        begin += num_tokens
        chosen_N = table_NW[span, 0]
        if not torch.isfinite(chosen_N).all():
            found.append(None)
            continue
        top_NK = table_NW[span, 1 : 1 + num_tops].tolist()
        ids_NK = table_NW[span, 1 + num_columns : 1 + num_columns + num_tops]
        ids = ids_NK.contiguous().view(torch.int32).tolist()
        everything = zip(requests.targets_N[span].tolist(), chosen_N.tolist(), ids, top_NK, strict=True)
        found.append(
            [
                TokenLogprob(target, logprob, [TopLogprob(*pair) for pair in zip(*tops, strict=True)])
                for target, logprob, *tops in everything
            ]
        )
    return found
