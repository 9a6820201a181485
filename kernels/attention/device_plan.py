"""Plans the attention kernels' work for a step: cut on the host, read on the device at fixed addresses.

Sequences are cut into decode items and prefill tiles, carried by `StepInputs` fields. Block tables on the
device and the scratch memory of split sequences are here too. Nothing here imports Triton.

A step's grids depend on its bucket alone, so that a captured graph serves any mix of lengths; the amount of
work is counted on the device. How a sequence is cut depends on its own length alone, so that its bits do not
depend on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.step_inputs import StepInputs

IntArray = npt.NDArray[np.integer]

SPLIT_KEYS = 256
"""Shortest split. us of 256 x 192, 256 x 2048 and 1 x 2048 keys at the 8B shape: 56, 579, 13.3; with 128 keys
74, 678, 11.3; with 512 56, 517, 20.5.
"""
MAX_SPLITS = 32
"""Of one sequence: 8 KV heads of a lone long one then give 256 programs."""
SPLIT_STEP = 64
"""Splits longer than the shortest are multiples of this."""
PREFILL_ROWS = 128
"""Rows of a prefill tile: its tokens times the query heads that share a KV head."""
DECODE_PROGRAMS_PER_SM = 32
"""Several times what runs there at once: programs that end early make room, and idle programs cost next to
nothing. us of 256 x 2048 keys at the 8B shape: 8 per multiprocessor 614, 16 579, 32 542.
"""

MAX_ROWS = 1 << 15
"""Rows and tokens share a word of an item: 16 bits each, and no sign."""


def split_lengths(total_lens: IntArray) -> IntArray:
    """Returns the keys per split of sequences of these lengths."""
    step = MAX_SPLITS * SPLIT_STEP
    return np.maximum(SPLIT_KEYS, -(-total_lens // step) * SPLIT_STEP)


def max_splits(total_len: int) -> int:
    """Returns the most splits of any sequence of up to `total_len` tokens."""
    return min(MAX_SPLITS, -(-total_len // SPLIT_KEYS))


@dataclass(frozen=True, slots=True)
class AttentionGeometry:
    """Heads of one layer, and tokens per KV block."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """One bucket of a `DevicePlan`: what a step's kernels are launched with, for any step of that bucket."""

    num_tokens: int
    decode_only: bool
    positions_T: Tensor
    """int32; -1 where a token only fills the bucket."""
    rows_T: Tensor
    """int32; the null row where a token only fills the bucket."""
    tables_RB: Tensor
    """int32 [max_rows + 1, max_blocks]; the last row is the null row."""
    counts_2: Tensor
    """int32: decode items, prefill tiles."""
    items_I4: Tensor
    """int32, decode items: token and row, first key, key after the last, sequence and split and splits."""
    tiles_I4: Tensor
    """int32, prefill tiles: first token, tokens, position of the first, row."""
    partials_IHD: Tensor
    """fp32 scratch: shares of split sequences."""
    stats_IH2: Tensor
    """fp32 scratch: their largest scores and sums of weights."""
    arrivals_SH: Tensor
    """int32, zero between launches: per sequence and KV head, the splits done."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    decode_programs: int
    prefill_tiles: int
    """Most tiles a step of this bucket can have."""


class DevicePlan:
    """Plans steps. Create it before `inputs.freeze`; then call `fill` per step, between its `begin` and
    `send`.
    """

    def __init__(
        self,
        inputs: StepInputs,
        geometry: AttentionGeometry,
        max_rows: int,
        max_tokens: int,
        max_blocks: int,
        device: torch.device | str,
    ) -> None:
        """
        Args:
            max_rows: rows of the batch state; row `max_rows` is the null row.
            max_tokens: of the largest bucket.
            max_blocks: of one sequence.
        """
        num_heads, num_kv_heads, head_dim = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
        if num_heads % num_kv_heads or num_heads // num_kv_heads > PREFILL_ROWS:
            raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} key heads")
        if max_rows >= MAX_ROWS or max_tokens > 2 * MAX_ROWS:
            raise ValueError(f"{max_rows} rows and {max_tokens} tokens: more than an item can name")
        device = torch.device(device)
        self.max_rows, self.max_tokens, self.max_len = max_rows, max_tokens, max_blocks * geometry.block_size
        self._geometry = geometry
        self._tile_tokens = PREFILL_ROWS // (num_heads // num_kv_heads)
        self._num_sms = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        )
        num_items = max_rows * max_splits(self.max_len)
        self._positions = inputs.field("attention.positions", max_tokens)
        self._rows = inputs.field("attention.rows", max_tokens)
        self._counts = inputs.field("attention.counts", 2)
        self._items = inputs.field("attention.items", (num_items, 4))
        self._tiles = inputs.field("attention.tiles", (self._most_tiles(max_tokens), 4))
        self.tables_RB = torch.zeros(max_rows + 1, max_blocks, dtype=torch.int32, device=device)
        """int32: written by the owner of the batch state, between steps, on the stream of the steps."""
        self._partials = torch.empty(num_items, num_heads, head_dim, dtype=torch.float32, device=device)
        self._stats = torch.empty(num_items, num_heads, 2, dtype=torch.float32, device=device)
        self._arrivals = torch.zeros(max_rows, num_kv_heads, dtype=torch.int32, device=device)

    def bucket(self, num_tokens: int, decode_only: bool) -> DeviceStep:
        """What to launch steps of up to `num_tokens` tokens with. Only after `inputs.freeze`.

        Args:
            decode_only: no sequence of such a step has more than one token, so prefill is not launched.
        """
        if num_tokens > self.max_tokens or (decode_only and num_tokens > self.max_rows):
            raise ValueError(
                f"a bucket of {num_tokens} tokens in a plan of {self.max_tokens} and {self.max_rows} rows"
            )
        geometry = self._geometry
        most_items = min(num_tokens, self.max_rows) * max_splits(self.max_len)
        return DeviceStep(
            num_tokens=num_tokens,
            decode_only=decode_only,
            positions_T=self._positions.device[:num_tokens],
            rows_T=self._rows.device[:num_tokens],
            tables_RB=self.tables_RB,
            counts_2=self._counts.device,
            items_I4=self._items.device,
            tiles_I4=self._tiles.device,
            partials_IHD=self._partials,
            stats_IH2=self._stats,
            arrivals_SH=self._arrivals,
            num_heads=geometry.num_heads,
            num_kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
            block_size=geometry.block_size,
            decode_programs=min(most_items * geometry.num_kv_heads, self._num_sms * DECODE_PROGRAMS_PER_SM),
            prefill_tiles=0 if decode_only else self._most_tiles(num_tokens),
        )

    def fill(
        self, rows_S: IntArray, query_lens_S: IntArray, total_lens_S: IntArray, num_tokens: int
    ) -> IntArray:
        """Writes one step. Returns the positions of its tokens, in host memory that a later step overwrites.

        Args:
            rows_S: row of the batch state of each sequence, in the order of the flattened batch; none at all
                for a step that is all filling.
            query_lens_S: tokens of this step. One token is decoded, more are a prefill chunk.
            total_lens_S: tokens of the sequence up to and including this step's.
            num_tokens: of the bucket; tokens beyond the batch's are marked as filling.
        """
        num_seqs = len(rows_S)
        positions, rows, counts = self._positions.host, self._rows.host, self._counts.host
        if not num_seqs:
            positions[:num_tokens], rows[:num_tokens], counts[:] = -1, self.max_rows, 0
            return positions[:0]
        ends = query_lens_S.cumsum()
        used = int(ends[-1])
        assert used <= num_tokens <= self.max_tokens, f"{used} tokens for a bucket of {num_tokens}"
        assert num_seqs <= self.max_rows, f"{num_seqs} sequences in {self.max_rows} rows"
        assert int(total_lens_S.max()) <= self.max_len, (
            f"{total_lens_S.max()} tokens in a row of {self.max_len}"
        )
        if used == num_seqs:
            positions[:used] = total_lens_S - 1
            rows[:used] = rows_S
            counts[0] = self._fill_decode(np.arange(num_seqs), rows_S, total_lens_S)
            counts[1] = 0
        else:
            owner = np.repeat(np.arange(num_seqs), query_lens_S)
            positions[:used] = np.arange(used) + (total_lens_S - ends)[owner]
            rows[:used] = rows_S[owner]
            single = query_lens_S == 1
            counts[0] = self._fill_decode(ends[single] - 1, rows_S[single], total_lens_S[single])
            wide = ~single
            query_lens = query_lens_S[wide]
            counts[1] = self._fill_prefill(
                ends[wide] - query_lens, query_lens, rows_S[wide], total_lens_S[wide]
            )
        positions[used:num_tokens] = -1
        rows[used:num_tokens] = self.max_rows
        return positions[:used]

    def _fill_decode(self, tokens: IntArray, rows: IntArray, total_lens: IntArray) -> int:
        """Writes items of sequences with long splits first: late ones are short. Returns their number."""
        num_seqs = len(tokens)
        if not num_seqs:
            return 0
        split_lens = split_lengths(total_lens)
        if split_lens.max() > SPLIT_KEYS:
            order = np.argsort(-split_lens, kind="stable")
            tokens, rows, total_lens, split_lens = (
                values[order] for values in (tokens, rows, total_lens, split_lens)
            )
        splits = -(-total_lens // split_lens)
        ends = splits.cumsum()
        num_items = int(ends[-1])
        owner = np.repeat(np.arange(num_seqs), splits)
        split = np.arange(num_items) - (ends - splits)[owner]
        first_keys = split * split_lens[owner]
        items = self._items.host
        items[:num_items, 0] = (tokens | rows << 16)[owner]
        items[:num_items, 1] = first_keys
        items[:num_items, 2] = np.minimum(first_keys + split_lens[owner], total_lens[owner])
        items[:num_items, 3] = owner | split << 16 | splits[owner] << 24
        return num_items

    def _fill_prefill(
        self, starts: IntArray, query_lens: IntArray, rows: IntArray, total_lens: IntArray
    ) -> int:
        """Writes tiles that see the most keys first. Returns their number."""
        per_seq = -(-query_lens // self._tile_tokens)
        ends = per_seq.cumsum()
        num_tiles = int(ends[-1])
        owner = np.repeat(np.arange(len(starts)), per_seq)
        skipped = (np.arange(num_tiles) - (ends - per_seq)[owner]) * self._tile_tokens
        counts = np.minimum(query_lens[owner] - skipped, self._tile_tokens)
        positions = (total_lens - query_lens)[owner] + skipped
        order = np.argsort(-(positions + counts), kind="stable")
        tiles = self._tiles.host
        for column, values in enumerate((starts[owner] + skipped, counts, positions, rows[owner])):
            tiles[:num_tiles, column] = values[order]
        return num_tiles

    def _most_tiles(self, num_tokens: int) -> int:
        """Every chunk has at least two tokens and wastes less than one tile."""
        return num_tokens // self._tile_tokens + max(1, min(self.max_rows, num_tokens // 2))
