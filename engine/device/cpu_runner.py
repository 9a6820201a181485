"""Runs one batch on a CPU: from the scheduler's plan to drawn tokens.

Owns the KV cache and flattens a plan into the model's inputs. Host work per step is a few vectorised passes
over the rows that run, plus what changed.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from engine.batch import NO_SLOT, Batch, CompletedStep, NewRow, Scored, StepResult
from engine.device.batch_state import BatchState, Shares
from engine.device.cpu_sampler import Sampler
from engine.device.scoring import read, rows_per_chunk, score, score_requests
from engine.grammar.masks import MaskFiller, words_of
from engine.grammar.row_constraints import RowConstraints
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.model import Model
from engine.outputs import RunnerCounters
from engine.protocol import TokenLogprob
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext
from kernels.sampling import TokenMasks


class ModelRunner:
    """Runs each step to its end before it returns."""

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
        """`num_blocks` includes the null block; without a pool every row runs the base."""
        self._model = model
        self._device = torch.device(model.device)
        self._block_size = block_size
        self._kv = KVCache(model.config, num_blocks, block_size, model.device, model.dtype)
        self._lora = None if pool is None else LoraContext(pool, model.device)
        self._sampler = Sampler(max_rows, model.config.vocab_size, model.config.eos_ids, model.device)
        self._state = BatchState(max_rows, max_len, block_size)
        self._constraints = RowConstraints(max_rows)
        self._filler = MaskFiller(num_threads=1)
        self._bits_MW = np.zeros((max_rows, words_of(model.config.vocab_size)), np.int32)
        self.counters = RunnerCounters()

    def launch(self, batch: Batch) -> CompletedStep:
        """Runs the batch to its end."""
        self.counters.eager_steps += 1
        return CompletedStep(self.execute(batch))

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Applies the changes, runs the scheduled tokens, draws for the rows that sample."""
        state = self._state
        for row in batch.freed_rows:
            state.free(row)
            self._sampler.release(row)
            self._constraints.free(row)
        for new in batch.new_rows:
            self._enter(new)
        for row, block_ids in batch.grown:
            state.append_blocks(row, block_ids)
        shares = state.shares(batch)
        drawing = shares.rows[shares.samples]
        output_lens = state.total_len[drawing] - state.prompt_len[drawing]
        masks, constraints = self._constraints.of(drawing, output_lens)
        filling = self._filler.start(constraints, self._bits_MW[: len(constraints)]) if constraints else None
        logits_SV, scores = self._forward(shares, batch.scored)
        state.advance(shares)
        if not drawing.size:
            return StepResult([], scores=scores)
        token_masks = None if filling is None else self._filled(filling, masks)
        sampled = self._sampler.sample(logits_SV, drawing, output_lens, token_masks)
        state.learn(drawing, sampled.token_ids)
        return StepResult(sampled.token_ids.tolist(), sampled.logprobs, sampled.failed, scores)

    def _enter(self, new: NewRow) -> None:
        assert self._lora is not None or new.slot == NO_SLOT, f"row {new.row}: slot {new.slot} without a pool"
        self._state.enter(new)
        prompt_ids, output_ids = new.token_ids[: new.prompt_len], new.token_ids[new.prompt_len :]
        self._sampler.admit(new.row, new.sampling, new.seed, prompt_ids, output_ids)
        self._constraints.enter(new.row, new.constraint)

    def _filled(self, filling: Future[None], masks: np.ndarray) -> TokenMasks:
        """Waits for the masks that were filled beside the forward pass."""
        filling.result()
        return TokenMasks(torch.from_numpy(self._bits_MW), torch.from_numpy(masks.astype(np.int32)))

    def _forward(
        self, shares: Shares, scored: list[Scored]
    ) -> tuple[torch.Tensor, list[list[TokenLogprob] | None]]:
        """Returns (logits [S, V] of the rows that sample, in their order; scores)."""
        rows, query_lens, samples = shares
        state = self._state
        places = np.flatnonzero(samples)
        if self._lora is not None and query_lens.max() > 1:
            order = self._by_slot(rows, query_lens)
            rows, query_lens = rows[order], query_lens[order]
            places = np.argsort(order)[places]
        ends = state.computed_len[rows] + query_lens
        num_blocks = -(-int(ends.max()) // self._block_size)
        attention = AttentionMetadata.build(
            query_lens, ends, state.tables[rows, :num_blocks], self._block_size
        )
        owners = np.repeat(rows, query_lens)
        input_ids_T = torch.from_numpy(state.tokens[owners, attention.positions].astype(np.int64))
        positions_T = torch.from_numpy(attention.positions)
        if self._lora is not None:
            self._lora.begin(state.slot[owners])
        hidden_TH = self._model.forward(
            input_ids_T.to(self._device), positions_T.to(self._device), attention, self._kv, self._lora
        )
        scores = self._score(scored, hidden_TH, rows, query_lens) if scored else []
        if not places.size:
            return hidden_TH.new_empty(0, self._model.config.vocab_size), scores
        if places.size < attention.num_tokens:
            last = (attention.query_starts + query_lens - 1)[places]
            hidden_TH = hidden_TH.index_select(0, torch.from_numpy(last).to(self._device))
        return self._model.logits(hidden_TH), scores

    def _score(
        self, scored: list[Scored], hidden_TH: torch.Tensor, rows: np.ndarray, query_lens: np.ndarray
    ) -> list[list[TokenLogprob] | None]:
        requests = score_requests(scored, self._state, rows, query_lens)
        at_N, targets_N = (
            torch.from_numpy(array).to(self._device) for array in (requests.at_N, requests.targets_N)
        )
        chunk_rows = rows_per_chunk(self._model.config.vocab_size)
        logits_of = self._model.logits
        return read(score(logits_of, hidden_TH, at_N, targets_N, requests.most_tops, chunk_rows), requests)

    def _by_slot(self, rows: np.ndarray, query_lens: np.ndarray) -> np.ndarray:
        """Returns the order that groups tokens by slot, slots with few tokens first, the base last.

        An adapter then reads and writes one slice of the batch; those with few rows are at its beginning.
        """
        slots = self._state.slot[rows]
        num_tokens = np.bincount(slots + 1, weights=query_lens)[slots + 1]
        num_tokens[slots == NO_SLOT] = np.inf
        return np.lexsort((slots, num_tokens))
