"""Runs batches on a GPU, one step ahead of the host: no launch waits for the step before it.

Owns the order in which a step is queued: changes, inputs, model, the draws' inputs, draws, scores.
`engine.device.gpu_forward` computes the logits; here rows get their masks and their draws. The draws are
prepared while the model runs already: a step behind drafts is waited for. Drawn tokens stay on the device as
the next step's input; the host reads them later. Draws that wait for masks are queued when the next step is
prepared, before its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import Batch, CompletedStep, LaunchedStep, Scored, StepResult
from engine.device.gpu_forward import DeviceForward, PreparedForward
from engine.device.gpu_masks import ConstrainedDraws, DeviceMasks
from engine.device.gpu_sampler import DeviceSampler, PreparedDraws
from engine.device.gpu_scoring import DeviceScorer
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.device.scoring import score_requests
from engine.grammar.constraint import RowConstraint
from engine.grammar.masks import MaskFiller
from engine.grammar.row_constraints import RowConstraints, ahead_of_masks
from engine.lora.device_pool import DevicePool
from engine.model.cache import KVCache
from engine.model.config import ModelConfig
from engine.model.model import Model
from kernels.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class _PlannedDraws:
    """A step's draws, whose inputs are written on the host."""

    prepared: PreparedDraws
    constraints: list[RowConstraint]
    """Those that have a mask, in the order of the masks."""
    ahead: list[list[int]] | None
    """The drafts that each mask comes after, if there are any."""


class DeviceRunner:
    """Keeps the batch state of sequences within `BatchLimits`, and runs their steps.

    What a request's bits depend on: the sizes of the steps it ran in (their buckets), how its prompt was cut
    into chunks, and how many other rows of its own adapter a step has; not on what the other rows or their
    adapters are. With `batch_invariant` steps have one size per product, and only the chunks' borders remain.
    """

    depth = 1
    """A step is launched before the last one is over."""

    def __init__(
        self,
        model: Model,
        pool: DevicePool | None,
        cache: CacheLayout,
        limits: BatchLimits,
        options: RunnerOptions | None = None,
    ) -> None:
        """Allocates the cache, the step's inputs and the sampler's state. Without a pool, or with one without
        slots, every row runs the base.
        """
        options = options or RunnerOptions()
        config, device = model.config, model.device
        self._pool, self._group = pool, model.group
        inputs = self._inputs = StepInputs(device)
        draw_inputs = self._draw_inputs = StepInputs(device)
        forward = self._forward = DeviceForward(model, pool, cache, limits, options, inputs)
        max_rows = forward.max_rows
        next_ids_R = None if model.group is None else model.group.shared_ids(max_rows + 1, device)
        self._sampler = DeviceSampler(
            draw_inputs, max_rows, config.vocab_size, config.eos_ids, device, next_ids_R=next_ids_R
        )
        forward.next_ids_R = self._sampler.next_ids_R
        self._constraints = RowConstraints(limits.max_rows)
        self._masks = DeviceMasks(MaskFiller(options.mask_threads), max_rows, config.vocab_size, device)
        self._undrawn: ConstrainedDraws | None = None
        """The step launched last, if its draws are not queued yet."""
        # Chunks of as many rows as the largest step draws for: the logits' memory is at least that large.
        self._scorer = DeviceScorer(model.logits, forward.max_tokens, max_rows, device)
        inputs.freeze()
        draw_inputs.freeze()
        self.counters = forward.counters

    @property
    def kv(self) -> KVCache:
        """The keys and values of all sequences."""
        return self._forward.kv

    @staticmethod
    def scratch_bytes(config: ModelConfig, limits: BatchLimits) -> int:
        """Returns about what steps take besides weights, adapters and cache: for budgets.

        bf16 activations of the widest layer, their FP8 copies, fp32 logits, partial sums of split attention
        and of adapters, and what libraries and captured graphs keep.
        """
        tokens = max(limits.max_batch_tokens, limits.max_rows)
        outputs = sum(out_features for out_features, _ in config.linear_shapes.values())
        activations = tokens * (2 * outputs + 3 * (4 * config.hidden_size + config.intermediate_size))
        logits = 4 * limits.max_rows * config.vocab_size
        return activations + 3 * logits + (3 << 30)

    def capture(
        self, on_progress: Callable[[int, int], None] | None = None, *, postpones: bool = False
    ) -> None:
        """Captures a graph for every size of step, or compiles its kernels; locks the memory that adapters
        are loaded from. Before the first launch and load.

        `on_progress(done, of)` is called along the way. With `postpones`, few sizes are captured that hold
        any step, and the others are left to `capture_next`.
        """
        self._forward.capture(on_progress, postpones=postpones)
        if self._pool is not None:
            self._pool.lock_host_memory()

    @property
    def num_postponed(self) -> int:
        """Sizes of step that are left to `capture_next`."""
        return self._forward.num_postponed

    def capture_next(self) -> None:
        """Captures one more size of step, once the results of all that were launched are read."""
        assert self._undrawn is None or self._undrawn.is_drawn
        self._forward.capture_next()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        """Queues the batch behind all launched before; returns at once, or when their masks are filled."""
        if batch.freed_rows or batch.new_rows:
            self._draw_last()  # it reads what rows leave on the device, which the next request overwrites
        self._apply(batch)
        shares = self._forward.apply(batch)
        self._inputs.begin()
        forward = self._forward.prepare(shares)
        self._draw_last()
        with nullcontext() if self._pool is None else self._pool.launching():
            self._inputs.send()
            logits_SV = self._forward.run(forward)
            launched = self._queue_draws(forward, logits_SV, batch.scored)
        self._forward.state.advance(shares)
        return launched

    def _draw_last(self) -> None:
        """Queues the draws of the step launched last, if they wait for their masks."""
        if self._undrawn is not None:
            self._undrawn.draw()
            self._undrawn = None
            self._share_draws()

    def _share_draws(self) -> None:
        """Queues the copy of what was drawn to the other ranks, unless their next step reads it here."""
        if self._group is not None:
            self._group.share(self._sampler.next_ids_R)

    def _apply(self, batch: Batch) -> None:
        """Applies a plan's changes of what rows are sampled with."""
        for verified in batch.verified:
            self._sampler.verified(verified.row, verified.token_ids)
        for row in batch.freed_rows:
            self._sampler.release(row)
            self._constraints.free(row)
        for new in batch.new_rows:
            prompt_ids, output_ids = new.token_ids[: new.prompt_len], new.token_ids[new.prompt_len :]
            self._sampler.admit(new.row, new.sampling, new.seed, prompt_ids, output_ids)
            self._constraints.enter(new.row, new.constraint)

    def _plan_draws(self, forward: PreparedForward) -> _PlannedDraws:
        """Writes the inputs of a step's draws on the host."""
        shares, state = forward.shares, self._forward.state
        self._draw_inputs.begin()
        draws = state.draws(shares)
        output_lens = state.total_len[draws.rows] - state.prompt_len[draws.rows] + draws.num_ahead
        masks, constraints = self._constraints.of(draws.rows, output_lens)
        prepared = self._sampler.prepare(
            draws.rows, output_lens, forward.logits_at, masks, draws, shares.guessing
        )
        return _PlannedDraws(prepared, constraints, ahead_of_masks(masks, draws.ahead))

    def _queue_draws(self, forward: PreparedForward, logits_SV: Tensor, scored: list[Scored]) -> LaunchedStep:
        """Queues a step's draws and scores behind its logits."""
        planned = self._plan_draws(forward)
        self._draw_inputs.send()
        has_draws = planned.prepared.rows.size > 0
        draws: LaunchedStep
        if planned.constraints:
            if scored:
                logits_SV = logits_SV.clone()  # the scores' own logits overwrite them before the draws
            draws = self._undrawn = ConstrainedDraws(
                self._sampler, self._masks, planned.prepared, logits_SV, planned.constraints, planned.ahead
            )
        elif has_draws:
            draws = self._sampler.launch(planned.prepared, logits_SV)
        else:
            draws = CompletedStep(StepResult([]))
        launched = draws
        if scored:
            shares = forward.shares
            requests = score_requests(scored, self._forward.state, shares.rows, shares.query_lens)
            launched = self._scorer.launch(requests, self._forward.hidden(forward), draws)
        if has_draws and not planned.constraints:
            self._share_draws()  # last: other ranks do not know which draws are late
        return launched
