"""Runs batches on a GPU, one step ahead of the host: no launch waits for the step before it.

Owns the KV cache, the block tables on the device, the inputs of each step, and the order in which a step is
queued: changes, inputs, model (a captured graph where there is one), draws, scores. Drawn tokens stay on the
device as the next step's input; the host reads them later. Draws that wait for masks are queued when the next
step is prepared, before its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import NO_SLOT, Batch, CompletedStep, LaunchedStep, NewRow, Scored, StepResult
from engine.device.batch_state import BatchState, Shares
from engine.device.gpu_masks import ConstrainedDraws, DeviceMasks
from engine.device.gpu_sampler import DeviceSampler, PreparedDraws
from engine.device.gpu_scoring import DeviceScorer
from engine.device.graphs import Bucket, StepGraphs, row_buckets, token_buckets
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.device.scoring import score_requests
from engine.grammar.constraint import RowConstraint
from engine.grammar.masks import MaskFiller
from engine.grammar.row_constraints import RowConstraints
from engine.lora.device_pool import DevicePool
from engine.model.cache import KVCache
from engine.model.config import ModelConfig
from engine.model.model import Model
from kernels.attention import AttentionGeometry, DevicePlan
from kernels.lora.device import DeviceLora
from kernels.step_inputs import StepInputs

MAX_TABLE_CHANGES = 4096
"""New entries of block tables in one step that travel with its other inputs: 65 536 tokens."""
INVARIANT_ROWS = 256
"""Rows of every product of a batch-invariant engine: as many as a full decode step has anyway."""


@dataclass(frozen=True, slots=True)
class _PreparedStep:
    """A step whose inputs are written on the host."""

    shares: Shares
    bucket: Bucket
    num_changes: int
    """Of block tables, among the inputs."""
    draws: PreparedDraws
    constraints: list[RowConstraint]
    """Those that have a mask, in the order of the masks."""


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
        config, device, max_rows = model.config, model.device, limits.max_rows
        self._model, self._pool = model, pool
        self._captures = options.cuda_graphs
        self._max_graph_rows = max_rows if options.max_graph_rows is None else options.max_graph_rows
        self._kv = KVCache(config, cache.num_blocks, cache.block_size, device, cache.dtype or model.dtype)
        self._state = BatchState(max_rows, limits.max_len, cache.block_size)
        rows, tokens = row_buckets(max_rows), token_buckets(max(limits.max_batch_tokens, max_rows))
        if options.batch_invariant:
            model.product_rows = INVARIANT_ROWS
            rows, tokens = ([_rounded_up(sizes[-1])] for sizes in (rows, tokens))
        max_tokens = max(rows[-1], tokens[-1])

        inputs = self._inputs = StepInputs(device)
        self._ids = inputs.field("runner.ids", max_tokens)
        self._sampled = inputs.field("runner.sampled", rows[-1])
        self._changes = inputs.field("runner.changes", (2, MAX_TABLE_CHANGES), torch.int64)
        geometry = AttentionGeometry(config.num_heads, config.num_kv_heads, config.head_dim, cache.block_size)
        max_blocks = self._state.tables.shape[1]
        self._plan = DevicePlan(inputs, geometry, rows[-1], max_tokens, max_blocks, device)
        self._lora = (
            None
            if pool is None or not pool.num_slots
            else DeviceLora(
                pool.table, inputs, max_tokens, _widths_in(config), batch_invariant=options.batch_invariant
            )
        )
        self._sampler = DeviceSampler(inputs, rows[-1], config.vocab_size, config.eos_ids, device)
        self._constraints = RowConstraints(max_rows)
        self._masks = DeviceMasks(MaskFiller(options.mask_threads), rows[-1], config.vocab_size, device)
        self._undrawn: ConstrainedDraws | None = None
        """The step launched last, if its draws are not queued yet."""
        # Chunks of as many rows as the largest step draws for: the logits' memory is at least that large.
        self._scorer = DeviceScorer(model.logits, max_tokens, rows[-1], device)
        inputs.freeze()
        self._row_slots = np.full(max_tokens, NO_SLOT, np.int64)
        self._changed: list[tuple[int, int, list[int]]] = []
        """(row, index in its table, block ids) since the last launch."""
        self._graphs = StepGraphs(self._forward, rows, tokens)
        self.counters = self._graphs.counters

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

    def capture(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Captures a graph for every size of step, or compiles its kernels; before the first launch.

        `on_progress(done, of)` is called along the way.
        """
        buckets = self._graphs.buckets(with_adapters=self._lora is not None)
        buckets = [b for b in buckets if not b.decode_only or b.num_tokens <= self._max_graph_rows]
        self._fill_with_padding(buckets[0].num_tokens)
        if self._captures:
            self._graphs.capture(buckets, on_progress)
        else:
            self._forward(buckets[0])
        torch.cuda.synchronize()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        """Queues the batch behind all launched before; returns at once, or when their masks are filled."""
        if batch.freed_rows or batch.new_rows:
            self._draw_last()  # it reads what rows leave on the device, which the next request overwrites
        self._apply(batch)
        step = self._prepare(self._state.shares(batch))
        self._draw_last()
        with nullcontext() if self._pool is None else self._pool.launching():
            launched = self._queue(step, batch.scored)
        self._state.advance(step.shares)
        return launched

    def _draw_last(self) -> None:
        """Queues the draws of the step launched last, if they wait for their masks."""
        if self._undrawn is not None:
            self._undrawn.draw()
            self._undrawn = None

    # ---- changes of the batch state

    def _apply(self, batch: Batch) -> None:
        for row in batch.freed_rows:
            self._state.free(row)
            self._sampler.release(row)
            self._constraints.free(row)
        for new in batch.new_rows:
            self._enter(new)
        for row, block_ids in batch.grown:
            self._changed.append((row, self._state.append_blocks(row, block_ids), block_ids))

    def _enter(self, new: NewRow) -> None:
        assert self._lora is not None or new.slot == NO_SLOT, f"row {new.row}: slot {new.slot} without a pool"
        self._state.enter(new)
        self._changed.append((new.row, 0, new.block_ids))
        prompt_ids, output_ids = new.token_ids[: new.prompt_len], new.token_ids[new.prompt_len :]
        self._sampler.admit(new.row, new.sampling, new.seed, prompt_ids, output_ids)
        self._constraints.enter(new.row, new.constraint)

    def _send_changes(self) -> int:
        """Writes block-table changes among the step's inputs and returns how many; those that do not fit are
        sent ahead.
        """
        width = self._plan.tables_RB.shape[1]
        places: list[int] = []
        values: list[int] = []
        for row, first, block_ids in self._changed:
            start = row * width + first
            places.extend(range(start, start + len(block_ids)))
            values.extend(block_ids)
        self._changed.clear()
        num_ahead = max(0, len(places) - MAX_TABLE_CHANGES)
        if num_ahead:
            self._write_tables(*torch.tensor([places[:num_ahead], values[:num_ahead]]).to(self._model.device))
        num_changes = len(places) - num_ahead
        changes = self._changes.host
        changes[0, :num_changes] = places[num_ahead:]
        changes[1, :num_changes] = values[num_ahead:]
        return num_changes

    def _write_tables(self, places: Tensor, values: Tensor) -> None:
        self._plan.tables_RB.view(-1).index_put_((places,), values.int())

    # ---- one step

    def _prepare(self, shares: Shares) -> _PreparedStep:
        """Writes the step's inputs on the host; the last step may still have to be drawn."""
        rows, query_lens, samples = shares
        state, inputs = self._state, self._inputs
        num_tokens = int(query_lens.sum())
        decode_only = num_tokens == len(rows)
        drawing = rows[samples]
        inputs.begin()
        num_changes = self._send_changes()
        ends = state.computed_len[rows] + query_lens
        owners = rows if decode_only else np.repeat(rows, query_lens)
        slots = state.slot[owners]
        with_adapters = self._lora is not None and bool((slots != NO_SLOT).any())
        bucket = self._graphs.bucket(num_tokens, decode_only, with_adapters)
        if with_adapters:
            self._assign_slots(slots, bucket)
        positions = self._plan.fill(rows, query_lens, ends, bucket.num_tokens)
        ids = self._ids.host
        ids[:num_tokens] = state.tokens[owners, positions]
        ids[num_tokens : bucket.num_tokens] = 0
        self._fill_sampled(query_lens, samples, decode_only)
        # A decode step has the logits of every row, also of a prompt's last token but one.
        places = np.flatnonzero(samples) if decode_only else None
        output_lens = state.total_len[drawing] - state.prompt_len[drawing]
        masks, constraints = self._constraints.of(drawing, output_lens)
        draws = self._sampler.prepare(drawing, output_lens, places, masks)
        return _PreparedStep(shares, bucket, num_changes, draws, constraints)

    def _queue(self, step: _PreparedStep, scored: list[Scored]) -> LaunchedStep:
        self._inputs.send()
        if step.num_changes:
            self._write_tables(*self._changes.device[:, : step.num_changes])
        logits_SV = self._graphs.run(step.bucket)
        draws: LaunchedStep
        if step.constraints:
            draws = self._undrawn = ConstrainedDraws(
                self._sampler, self._masks, step.draws, logits_SV, step.constraints
            )
        elif step.draws.rows.size:
            draws = self._sampler.launch(step.draws, logits_SV)
        else:
            draws = CompletedStep(StepResult([]))
        if not scored:
            return draws
        requests = score_requests(scored, self._state, step.shares.rows, step.shares.query_lens)
        return self._scorer.launch(requests, self._model.hidden(step.bucket.num_tokens), draws)

    def _assign_slots(self, slots: np.ndarray, bucket: Bucket) -> None:
        """Assigns the step's tokens to adapters; padding of the bucket has none."""
        assert self._lora is not None
        row_slots = self._row_slots[: bucket.num_tokens]
        row_slots[: len(slots)] = slots
        row_slots[len(slots) :] = NO_SLOT
        self._lora.begin(row_slots)

    def _fill_sampled(self, query_lens: np.ndarray, samples: np.ndarray, decode_only: bool) -> None:
        """Says, in a mixed step, whose logits are needed. A decode step needs all."""
        if decode_only:
            return
        last = (query_lens.cumsum() - 1)[samples]
        sampled = self._sampled.host
        sampled[: len(last)] = last
        sampled[len(last) :] = 0

    @torch.inference_mode()
    def _forward(self, bucket: Bucket) -> Tensor:
        """Queues the model over the inputs. Returns logits [S, V] of the rows that may draw."""
        plan = self._plan.bucket(bucket.num_tokens, bucket.decode_only)
        hidden_TH = self._model.forward_on_device(
            self._ids.device[: bucket.num_tokens],
            self._sampler.next_ids_R,
            plan,
            self._kv,
            self._lora if bucket.with_adapters else None,
        )
        if not bucket.decode_only:
            hidden_TH = hidden_TH.index_select(0, self._sampled.device[: bucket.num_tokens])
        return self._model.logits(hidden_TH)

    def _fill_with_padding(self, num_tokens: int) -> None:
        """Describes a step that is all padding, for capture and warm-up."""
        self._inputs.begin()
        no_rows = np.zeros(0, np.int64)
        self._plan.fill(no_rows, no_rows, no_rows, num_tokens)
        if self._lora is not None:
            self._row_slots[:] = NO_SLOT
            self._lora.begin(self._row_slots)
        self._inputs.send()


def _widths_in(config: ModelConfig) -> list[int]:
    """Returns the columns of each group's input."""
    return sorted({in_features for _, in_features in config.linear_shapes.values()})


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // INVARIANT_ROWS) * INVARIANT_ROWS
