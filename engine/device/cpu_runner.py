"""Runs one batch on a CPU: from the scheduler's plan to drawn tokens.

`engine.device.cpu_forward` computes the logits; here rows get their masks and their draws.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from engine.batch import Batch, CompletedStep, StepResult
from engine.device.batch_state import Guessing
from engine.device.cpu_forward import CpuForward
from engine.device.cpu_sampler import Sampler
from engine.device.runner_options import CacheLayout
from engine.device.scoring import read
from engine.grammar.masks import MaskFiller, words_of
from engine.grammar.row_constraints import RowConstraints, ahead_of_masks
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.model import Model
from engine.outputs import RunnerCounters
from kernels.sampling import TokenMasks, greedy


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
        config = model.config
        self._forward = CpuForward(model, pool, CacheLayout(num_blocks, block_size), max_rows, max_len)
        self._sampler = Sampler(max_rows, config.vocab_size, config.eos_ids, model.device)
        self._constraints = RowConstraints(max_rows)
        self._filler = MaskFiller(num_threads=1)
        self._bits_MW = np.zeros((max_rows, words_of(config.vocab_size)), np.int32)
        self.counters = RunnerCounters()

    @property
    def kv(self) -> KVCache:
        """The keys and values of all sequences."""
        return self._forward.kv

    def launch(self, batch: Batch) -> CompletedStep:
        """Runs the batch to its end."""
        self.counters.eager_steps += 1
        return CompletedStep(self.execute(batch))

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Applies the changes, runs the scheduled tokens, draws for the rows that sample."""
        state = self._forward.state
        for verified in batch.verified:
            self._sampler.verified(verified.row, verified.token_ids)
        for row in batch.freed_rows:
            self._sampler.release(row)
            self._constraints.free(row)
        for new in batch.new_rows:
            prompt_ids, output_ids = new.token_ids[: new.prompt_len], new.token_ids[new.prompt_len :]
            self._sampler.admit(new.row, new.sampling, new.seed, prompt_ids, output_ids)
            self._constraints.enter(new.row, new.constraint)
        shares = self._forward.apply(batch)
        draws = state.draws(shares)
        drawing = draws.rows
        output_lens = state.total_len[drawing] - state.prompt_len[drawing] + draws.num_ahead
        masks, constraints = self._constraints.of(drawing, output_lens)
        filling = None
        if constraints:
            ahead = ahead_of_masks(masks, draws.ahead)
            filling = self._filler.start(constraints, self._bits_MW[: len(constraints)], ahead=ahead)
        logits_SV, scores_NW, requests = self._forward.run(shares, batch.scored)
        scores = [] if scores_NW is None or requests is None else read(scores_NW, requests)
        if not drawing.size:
            return StepResult([], scores=scores)
        token_masks = None if filling is None else self._filled(filling, masks)
        sampled = self._sampler.sample(logits_SV[: len(drawing)], drawing, output_lens, token_masks, draws)
        plain = ~draws.is_verified
        state.learn(drawing[plain], sampled.token_ids[plain])
        guesses = _guesses(logits_SV[len(drawing) :], shares.guessing)
        return StepResult(sampled.token_ids.tolist(), sampled.logprobs, sampled.failed, scores, guesses)

    def _filled(self, filling: Future[None], masks: np.ndarray) -> TokenMasks:
        """Waits for the masks that were filled beside the forward pass."""
        filling.result()
        return TokenMasks(torch.from_numpy(self._bits_MW), torch.from_numpy(masks.astype(np.int32)))


def _guesses(logits_GV: torch.Tensor, guessing: Guessing) -> list[list[int]]:
    """Returns the likeliest token after each placeholder, by row."""
    return guessing.split(greedy(logits_GV)[0].tolist()) if guessing.counts else []
