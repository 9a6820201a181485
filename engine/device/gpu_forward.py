"""Computes a batch's logits on a GPU: the part of a step that every rank of a tensor-parallel group runs.

Owns the KV cache, the state of the batch's rows, the block tables on the device and most of a step's inputs;
the model runs as a captured graph where there is one. Tokens are drawn elsewhere, into `next_ids_R`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import NO_SLOT, Batch, NewRow
from engine.device.batch_state import BatchState, Ints, Shares, positions_of_logits
from engine.device.compiled_steps import compiled_steps_note
from engine.device.graphs import Bucket, StepGraphs, first_buckets, row_buckets, token_buckets
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.lora.device_pool import DevicePool
from engine.lora.shards import adapter_widths
from engine.model.cache import KVCache
from engine.model.model import Model
from kernels.attention import AttentionGeometry, DevicePlan
from kernels.attention.device_plan import can_read_ahead, decodes_chunks
from kernels.lora.device import DeviceLora
from kernels.parallel_compilation import compiled_in_parallel
from kernels.step_inputs import StepInputs

MAX_TABLE_CHANGES = 4096
"""New entries of block tables in one step that travel with its other inputs: 65 536 tokens."""
DIFFERENT_LAYERS = 2
"""The first layer, and one that adds what the one before it computed: all others launch the same kernels."""
INVARIANT_ROWS = 256
"""Rows of every product of a batch-invariant engine: as many as a full decode step has anyway."""


@dataclass(frozen=True, slots=True)
class PreparedForward:
    """A forward pass whose inputs are written on the host."""

    shares: Shares
    bucket: Bucket
    num_changes: int
    """Of block tables, among the inputs."""
    logits_at: Ints | None
    """Which rows the step's draws have of the logits, and its placeholders after them; None for the first
    ones.
    """


class DeviceForward:
    """Keeps sequences within `BatchLimits`, and computes their steps.

    Call `apply`, then between `begin` and `send` of the inputs `prepare`, then `run`.
    """

    def __init__(
        self,
        model: Model,
        pool: DevicePool | None,
        cache: CacheLayout,
        limits: BatchLimits,
        options: RunnerOptions,
        inputs: StepInputs,
    ) -> None:
        """Allocates the cache and registers its fields among the inputs, which are frozen later. Without a
        pool, or with one without slots, every row runs the base.
        """
        config, device = model.config, model.device
        self._model, self._inputs, self._limits = model, inputs, limits
        self._captures = options.cuda_graphs
        self._max_graph_rows = limits.max_rows if options.max_graph_rows is None else options.max_graph_rows
        self.kv = KVCache(config, cache.num_blocks, cache.block_size, device, cache.dtype or model.dtype)
        self.state = BatchState(limits.max_rows, limits.max_len, cache.block_size)
        rows, tokens = (
            row_buckets(limits.max_rows),
            token_buckets(max(limits.max_batch_tokens, limits.max_rows)),
        )
        if options.batch_invariant:
            model.products.rows = INVARIANT_ROWS
            rows, tokens = ([_rounded_up(sizes[-1])] for sizes in (rows, tokens))
        self.max_rows = rows[-1]
        """Rows of the largest decode step."""
        self.max_tokens = max(rows[-1], tokens[-1])
        """Tokens of the largest step."""
        self._max_decoded = 0 if options.batch_invariant else min(self.max_rows, self._max_graph_rows)
        """Tokens of the largest step with chunks that runs as one of so many decoding rows."""
        self.next_ids_R: Tensor
        """int32 by row: the token drawn last. Set before the first step; must not move."""
        self._ids = inputs.field("runner.ids", self.max_tokens)
        self._sampled = inputs.field("runner.sampled", rows[-1])
        self._changed_places = inputs.field("runner.changed_places", MAX_TABLE_CHANGES, torch.int64)
        self._changed_blocks = inputs.field("runner.changed_blocks", MAX_TABLE_CHANGES)
        geometry = AttentionGeometry(config.num_heads, config.num_kv_heads, config.head_dim, cache.block_size)
        max_blocks = self.state.tables.shape[1]
        self._plan = DevicePlan(
            inputs,
            geometry,
            rows[-1],
            self.max_tokens,
            max_blocks,
            device,
            reads_ahead=not options.batch_invariant and can_read_ahead(geometry, device),
        )
        self._lora = (
            None
            if pool is None or not pool.num_slots
            else DeviceLora(
                pool.table,
                inputs,
                self.max_tokens,
                adapter_widths(config, 1 if model.group is None else model.group.shard.size),
                width_out=max(map(sum, config.group_widths.values())),
                batch_invariant=options.batch_invariant,
                sums=model.exchange,
            )
        )
        self._row_slots = np.full(self.max_tokens, NO_SLOT, np.int64)
        self._changed: list[tuple[int, int, list[int]]] = []
        """(row, index in its table, block ids) since the last launch."""
        self._graphs = StepGraphs(
            self._forward, rows, tokens, self._forward_different_layers, self._plan.ahead_keys
        )
        self.counters = self._graphs.counters

    def capture(
        self, on_progress: Callable[[int, int], None] | None = None, *, postpones: bool = False
    ) -> None:
        """Captures a graph for every size of step, or compiles its kernels; before the first step.

        `on_progress(done, of)` is called along the way. With `postpones`, few sizes are captured that hold
        any step, and the others are left to `capture_next`.
        """
        buckets = self._graphs.buckets(with_adapters=self._lora is not None)
        buckets = [b for b in buckets if not b.decode_only or b.num_tokens <= self._max_graph_rows]
        self._fill_with_padding(buckets[0].num_tokens)
        if self._captures:
            self._compile(buckets)
            first = first_buckets(buckets) if postpones else buckets
            self._graphs.capture(first, on_progress)
            others = [bucket for bucket in buckets if bucket not in first]
            others.sort(key=lambda bucket: not bucket.decode_only)  # most steps decode
            self._graphs.postpone(others)
        else:
            self._forward(buckets[0])
        torch.cuda.synchronize()

    @property
    def num_postponed(self) -> int:
        """Sizes of step that are left to `capture_next`."""
        return self._graphs.num_postponed

    def capture_next(self) -> None:
        """Captures one more size of step, while no step runs."""
        self._fill_with_padding(self.max_tokens)
        self._graphs.capture_next()

    def _compile(self, buckets: Sequence[Bucket]) -> None:
        """Has all kernels compiled side by side that steps launch, unless that was done before."""
        note = compiled_steps_note(
            self._model.config,
            self._model.quantization,
            self.kv.layers.dtype,
            self._limits,
            self._model.products.rows,
            buckets,
        )
        if note.exists():
            return
        with compiled_in_parallel():
            for bucket in buckets:
                self._forward_different_layers(bucket)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()

    def apply(self, batch: Batch) -> Shares:
        """Applies a plan's changes of rows and tables. Returns what it schedules."""
        for verified in batch.verified:
            self.state.verify(verified)
        for row in batch.freed_rows:
            self.state.free(row)
        for new in batch.new_rows:
            self._enter(new)
        for row, block_ids in batch.grown:
            self._changed.append((row, self.state.append_blocks(row, block_ids), block_ids))
        return self.state.shares(batch)

    def prepare(self, shares: Shares) -> PreparedForward:
        """Writes a step's inputs on the host; the last step may still have to be drawn."""
        rows, query_lens, *_ = shares
        state = self.state
        num_tokens = int(query_lens.sum())
        num_changes = self._send_changes()
        ends = state.computed_len[rows] + query_lens
        has_chunks = num_tokens > len(rows)
        decode_only = not has_chunks or (num_tokens <= self._max_decoded and decodes_chunks(query_lens, ends))
        owners = np.repeat(rows, query_lens) if has_chunks else rows
        slots = state.slots_of_tokens(shares)
        with_adapters = self._lora is not None and bool((slots != NO_SLOT).any())
        longest = None if has_chunks else int(ends.max())
        bucket = self._graphs.bucket(num_tokens, decode_only, with_adapters, longest)
        if bucket.with_adapters:
            self._assign_slots(slots, bucket)
        positions = self._plan.fill(rows, query_lens, ends, bucket.num_tokens, decode_only=decode_only)
        ids = self._ids.host
        ids[:num_tokens] = state.tokens[owners, positions]
        ids[num_tokens : bucket.num_tokens] = 0
        logits_at = positions_of_logits(query_lens.cumsum() - 1, shares)
        if decode_only:
            return PreparedForward(shares, bucket, num_changes, logits_at)
        sampled = self._sampled.host
        sampled[: len(logits_at)] = logits_at
        sampled[len(logits_at) :] = 0
        return PreparedForward(shares, bucket, num_changes, None)

    def run(self, prepared: PreparedForward) -> Tensor:
        """Queues a step behind its inputs. Returns logits [S, V]: in a decode step every token's, otherwise
        of the step's draws, then of its placeholders.
        """
        if prepared.num_changes:
            num = prepared.num_changes
            self._write_tables(self._changed_places.device[:num], self._changed_blocks.device[:num])
        return self._graphs.run(prepared.bucket)

    def hidden(self, prepared: PreparedForward) -> Tensor:
        """Returns [T, H] of a step that has run, which the next one overwrites."""
        return self._model.hidden(prepared.bucket.num_tokens)

    # ---- changes of the batch state

    def _enter(self, new: NewRow) -> None:
        assert self._lora is not None or new.slot == NO_SLOT, f"row {new.row}: slot {new.slot} without a pool"
        self.state.enter(new)
        self._changed.append((new.row, 0, new.block_ids))

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
            ahead = torch.tensor([places[:num_ahead], values[:num_ahead]]).to(self._model.device)
            self._write_tables(ahead[0], ahead[1].int())
        num_changes = len(places) - num_ahead
        self._changed_places.host[:num_changes] = places[num_ahead:]
        self._changed_blocks.host[:num_changes] = values[num_ahead:]
        return num_changes

    def _write_tables(self, places: Tensor, values: Tensor) -> None:
        # One kernel: this is queued before a step that the device may be waiting for.
        self._plan.tables_RB.view(-1).scatter_(0, places, values)

    # ---- one step

    def _assign_slots(self, slots: np.ndarray, bucket: Bucket) -> None:
        """Assigns the step's tokens to adapters; padding of the bucket has none."""
        assert self._lora is not None
        row_slots = self._row_slots[: bucket.num_tokens]
        row_slots[: len(slots)] = slots
        row_slots[len(slots) :] = NO_SLOT
        self._lora.begin(row_slots)

    @torch.inference_mode()
    def _forward(self, bucket: Bucket, num_layers: int | None = None) -> Tensor:
        """Queues the model, or its first layers, over the inputs. Returns logits [S, V] of the rows that may
        draw.
        """
        plan = self._plan.bucket(bucket.num_tokens, bucket.decode_only, bucket.has_long)
        hidden_TH = self._model.forward_on_device(
            self._ids.device[: bucket.num_tokens],
            self.next_ids_R,
            plan,
            self.kv,
            self._lora if bucket.with_adapters else None,
            num_layers,
        )
        if not bucket.decode_only:
            hidden_TH = hidden_TH.index_select(0, self._sampled.device[: bucket.num_tokens])
        return self._model.logits(hidden_TH)

    def _forward_different_layers(self, bucket: Bucket) -> Tensor:
        """Queues a step whose kernels and buffers are all that the whole step has."""
        return self._forward(bucket, DIFFERENT_LAYERS)

    def _fill_with_padding(self, num_tokens: int) -> None:
        """Describes a step that is all padding, for capture and warm-up."""
        self._inputs.begin()
        self._ids.host[:] = 0
        self._sampled.host[:] = 0  # the last step may have been larger than the one that is described
        no_rows = np.zeros(0, np.int64)
        self._plan.fill(no_rows, no_rows, no_rows, num_tokens)
        if self._lora is not None:
            self._row_slots[:] = NO_SLOT
            self._lora.begin(self._row_slots)
        self._inputs.send()


def _rounded_up(num_tokens: int) -> int:
    return -(-num_tokens // INVARIANT_ROWS) * INVARIANT_ROWS
