"""Runs one batch: from the scheduler's plan to drawn tokens.

Owns the batch state that persists between steps (tokens, block tables, adapter slots and sampling state by
row), the KV cache, and the flattening of a plan into the model's inputs. Host work per step is a few
vectorised passes over the rows that run, plus what changed. Refuses to know requests, queues and block
accounting: a plan is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from engine.batch import NO_SLOT, Batch, Done, NewRow, StepResult
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.model import Model
from engine.outputs import RunnerCounters
from engine.sampler import Sampler
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext


class ModelRunner:
    """Batch state of `max_rows` sequences of at most `max_len` tokens, prompt and completion together.

    Invariant of a running row: computed < total, and its block table covers computed + scheduled tokens.
    """

    depth = 0
    """A step is over when its launch returns."""

    def __init__(
        self,
        model: Model,
        pool: AdapterPool | None,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_len: int,
    ) -> None:
        """`num_blocks` counts the null block; without a pool every row runs the base."""
        self._model = model
        self._device = torch.device(model.device)
        self._block_size = block_size
        self._kv = KVCache(model.config, num_blocks, block_size, model.device, model.dtype)
        self._lora = None if pool is None else LoraContext(pool, model.device)
        self._sampler = Sampler(max_rows, model.config.vocab_size, model.config.eos_ids, model.device)
        self._tokens = np.zeros((max_rows, max_len), np.int32)
        self._prompt_len = np.zeros(max_rows, np.int64)
        self._total_len = np.zeros(max_rows, np.int64)
        self._computed_len = np.zeros(max_rows, np.int64)
        self._slot = np.full(max_rows, NO_SLOT, np.int64)
        self._tables = np.zeros((max_rows, -(-max_len // block_size)), np.int32)
        self._num_blocks = np.zeros(max_rows, np.int64)
        self.counters = RunnerCounters()

    def launch(self, batch: Batch) -> Done:
        """Run the batch, to its end."""
        self.counters.eager_steps += 1
        return Done(self.execute(batch))

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Apply the changes, run the scheduled tokens, draw for the rows that sample."""
        for row in batch.freed_rows:
            self._free(row)
        for new in batch.new_rows:
            self._enter(new)
        for row, block_ids in batch.grown:
            self._append_blocks(row, block_ids)
        rows, query_lens, samples = self._shares(batch)
        logits_SV = self._forward(rows, query_lens, samples)
        self._computed_len[rows] += query_lens
        drawing = rows[samples]
        if not drawing.size:
            return StepResult([])
        output_lens = self._total_len[drawing] - self._prompt_len[drawing]
        sampled = self._sampler.sample(logits_SV, drawing, output_lens)
        self._tokens[drawing, self._total_len[drawing]] = sampled.token_ids
        self._total_len[drawing] += 1
        return StepResult(sampled.token_ids.tolist(), sampled.logprobs, sampled.failed)

    # ---- batch state

    def _free(self, row: int) -> None:
        self._total_len[row] = self._computed_len[row] = self._num_blocks[row] = 0
        self._slot[row] = NO_SLOT
        self._sampler.release(row)

    def _enter(self, new: NewRow) -> None:
        row, total_len = new.row, len(new.token_ids)
        assert 0 < new.prompt_len <= total_len, (
            f"row {row}: a prompt of {new.prompt_len} in {total_len} tokens"
        )
        assert self._lora is not None or new.slot == NO_SLOT, f"row {row}: slot {new.slot} without a pool"
        self._tokens[row, :total_len] = new.token_ids
        self._prompt_len[row] = new.prompt_len
        self._total_len[row] = total_len
        self._computed_len[row] = new.computed_len
        self._slot[row] = new.slot
        self._num_blocks[row] = 0
        self._append_blocks(row, new.block_ids)
        prompt_ids, output_ids = new.token_ids[: new.prompt_len], new.token_ids[new.prompt_len :]
        self._sampler.admit(row, new.sampling, new.seed, prompt_ids, output_ids)

    def _append_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        first = self._num_blocks[row]
        self._tables[row, first : first + len(block_ids)] = block_ids
        self._num_blocks[row] = first + len(block_ids)

    # ---- one step

    def _shares(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, tokens of each, whether each samples) of what is scheduled, checked against the state."""
        num_rows = len(batch.scheduled)
        flat = np.fromiter(chain.from_iterable(batch.scheduled), np.int64, count=3 * num_rows)
        table = flat.reshape(num_rows, 3)
        rows, query_lens, samples = table[:, 0], table[:, 1], table[:, 2].astype(bool)
        ends = self._computed_len[rows] + query_lens
        assert (query_lens > 0).all(), "a row without tokens is scheduled"
        assert (samples == (ends == self._total_len[rows])).all(), "plan and state disagree on what is left"
        assert (ends <= self._num_blocks[rows] * self._block_size).all(), "scheduled beyond the block table"
        return rows, query_lens, samples

    def _forward(self, rows: np.ndarray, query_lens: np.ndarray, samples: np.ndarray) -> torch.Tensor:
        """Logits [S, V] of the rows that sample, in their order."""
        places = np.flatnonzero(samples)
        if self._lora is not None and query_lens.max() > 1:
            order = self._by_slot(rows, query_lens)
            rows, query_lens = rows[order], query_lens[order]
            places = np.argsort(order)[places]
        ends = self._computed_len[rows] + query_lens
        num_blocks = -(-int(ends.max()) // self._block_size)
        attention = AttentionMetadata.build(
            query_lens, ends, self._tables[rows, :num_blocks], self._block_size
        )
        owners = np.repeat(rows, query_lens)
        input_ids_T = torch.from_numpy(self._tokens[owners, attention.positions].astype(np.int64))
        positions_T = torch.from_numpy(attention.positions)
        if self._lora is not None:
            self._lora.begin(self._slot[owners])
        hidden_TH = self._model.forward(
            input_ids_T.to(self._device), positions_T.to(self._device), attention, self._kv, self._lora
        )
        if not places.size:
            return hidden_TH.new_empty(0, self._model.config.vocab_size)
        if places.size < attention.num_tokens:
            last = (attention.query_starts + query_lens - 1)[places]
            hidden_TH = hidden_TH.index_select(0, torch.from_numpy(last).to(self._device))
        return self._model.logits(hidden_TH)

    def _by_slot(self, rows: np.ndarray, query_lens: np.ndarray) -> np.ndarray:
        """The order that puts tokens of one slot side by side, slots with few tokens first, the base last.

        An adapter then reads and writes one slice of the batch; those of few rows lie within its beginning.
        """
        slots = self._slot[rows]
        num_tokens = np.bincount(slots + 1, weights=query_lens)[slots + 1]
        num_tokens[slots == NO_SLOT] = np.inf
        return np.lexsort((slots, num_tokens))
