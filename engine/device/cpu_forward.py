"""Computes a batch's logits on a CPU: the part of a step that every rank of a tensor-parallel group runs.

Owns the KV cache and the state of the batch's rows, and flattens a plan into the model's inputs. Host work
per step is a few vectorised passes over the rows that run, plus what changed. Tokens are drawn elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.batch import NO_SLOT, Batch, NewRow, Scored, Verified
from engine.device.batch_state import BatchState, Ints, Shares, positions_of_logits
from engine.device.runner_options import CacheLayout
from engine.device.scoring import ScoreRequests, rows_per_chunk, score, score_requests
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.model import Model
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext


class Forward(NamedTuple):
    """What a forward pass computed."""

    logits_SV: Tensor
    """Of the step's draws, in their order, then of its placeholders. On ranks other than 0 without
    columns."""
    scores_NW: Tensor | None
    """As `engine.device.scoring.score` returns them."""
    requests: ScoreRequests | None


class CpuForward:
    """Keeps up to `max_rows` sequences of up to `max_len` tokens, and computes their steps."""

    def __init__(
        self, model: Model, pool: AdapterPool | None, cache: CacheLayout, max_rows: int, max_len: int
    ) -> None:
        """Without a pool every row runs the base."""
        self._model = model
        self._device = torch.device(model.device)
        self._block_size = cache.block_size
        self.kv = KVCache(model.config, cache.num_blocks, cache.block_size, model.device, model.dtype)
        sum_over_ranks = None if model.group is None else model.group.sum
        self._lora = None if pool is None else LoraContext(pool, model.device, sum_over_ranks)
        self.state = BatchState(max_rows, max_len, cache.block_size)

    def apply(self, batch: Batch) -> Shares:
        """Applies a plan's changes of rows and tables. Returns what it schedules."""
        if batch.verified:
            self._verify(batch.verified)
        for row in batch.freed_rows:
            self.state.free(row)
        for new in batch.new_rows:
            self._enter(new)
        for row, block_ids in batch.grown:
            self.state.append_blocks(row, block_ids)
        return self.state.shares(batch)

    def run(self, shares: Shares, scored: list[Scored]) -> Forward:
        """Computes the scheduled tokens and advances the rows."""
        forward = self._forward(shares, scored)
        self.state.advance(shares)
        return forward

    def _enter(self, new: NewRow) -> None:
        assert self._lora is not None or new.slot == NO_SLOT, f"row {new.row}: slot {new.slot} without a pool"
        self.state.enter(new)

    def _forward(self, shares: Shares, scored: list[Scored]) -> Forward:
        rows, query_lens = shares.rows, shares.query_lens
        state = self.state
        order = np.arange(len(rows))
        slots = None if self._lora is None else state.slots_of_tokens(shares)
        if slots is not None and query_lens.max() > 1:
            order = self._by_slot(rows, query_lens)
            slots = slots[_tokens_in(order, query_lens)]
            rows, query_lens = rows[order], query_lens[order]
        ends = state.computed_len[rows] + query_lens
        num_blocks = -(-int(ends.max()) // self._block_size)
        attention = AttentionMetadata.build(
            query_lens, ends, state.tables[rows, :num_blocks], self._block_size
        )
        owners = np.repeat(rows, query_lens)
        input_ids_T = torch.from_numpy(state.tokens[owners, attention.positions].astype(np.int64))
        positions_T = torch.from_numpy(attention.positions)
        if self._lora is not None and slots is not None:
            self._lora.begin(slots)
        hidden_TH = self._model.forward(
            input_ids_T.to(self._device), positions_T.to(self._device), attention, self.kv, self._lora
        )
        requests = score_requests(scored, state, rows, query_lens) if scored else None
        scores_NW = None if requests is None else self._score(requests, hidden_TH)
        last = np.empty_like(rows)
        last[order] = attention.query_starts + query_lens - 1
        at = positions_of_logits(last, shares)
        if not at.size:
            return Forward(hidden_TH.new_empty(0, self._model.config.vocab_size), scores_NW, requests)
        if len(order) < attention.num_tokens or at.size < attention.num_tokens:
            hidden_TH = hidden_TH.index_select(0, torch.from_numpy(at).to(self._device))
        return Forward(self._model.logits(hidden_TH), scores_NW, requests)

    def _verify(self, verified: Sequence[Verified]) -> None:
        """Advances rows with drafts or placeholders. Zeroes the keys and values of those that do not count:
        the rows' next step reads the whole of their last blocks, and what a draft adapter computes, and what
        follows from it, may not be finite.
        """
        dropped = [(one.row, self.state.verify(one)) for one in verified]
        rows = np.repeat([row for row, _ in dropped], [len(positions) for _, positions in dropped])
        if not rows.size:
            return
        positions = np.concatenate([np.arange(one.start, one.stop) for _, one in dropped])
        blocks = self.state.tables[rows, positions // self._block_size]
        blocks_N, places_N = (
            torch.from_numpy(array.astype(np.int64)).to(self._device)
            for array in (blocks, positions % self._block_size)
        )
        self.kv.forget(blocks_N, places_N)

    def _score(self, requests: ScoreRequests, hidden_TH: Tensor) -> Tensor | None:
        at_N, targets_N = (
            torch.from_numpy(array).to(self._device) for array in (requests.at_N, requests.targets_N)
        )
        chunk_rows = rows_per_chunk(self._model.config.vocab_size)
        group = self._model.group
        if group is None or group.shard.rank == 0:
            logits_of = self._model.logits
            return score(logits_of, hidden_TH, at_N, targets_N, requests.most_tops, chunk_rows)
        for begin in range(0, len(at_N), chunk_rows):  # rank 0 gathers the same chunks
            self._model.logits(hidden_TH.index_select(0, at_N[begin : begin + chunk_rows]))
        return None

    def _by_slot(self, rows: Ints, query_lens: Ints) -> Ints:
        """Returns the order that groups tokens by slot, slots with few tokens first, the base last.

        An adapter then reads and writes one slice of the batch; those with few rows are at its beginning.
        """
        slots = self.state.slot[rows]
        num_tokens = np.bincount(slots + 1, weights=query_lens)[slots + 1]
        num_tokens[slots == NO_SLOT] = np.inf
        return np.lexsort((slots, num_tokens))


def _tokens_in(order: Ints, query_lens: Ints) -> Ints:
    """Returns the tokens of a flattened batch in another order of its rows."""
    lens = query_lens[order]
    starts = (query_lens.cumsum() - query_lens)[order]
    shift = (starts - (lens.cumsum() - lens)).astype(np.int64)
    return shift.repeat(lens) + np.arange(int(lens.sum()))
