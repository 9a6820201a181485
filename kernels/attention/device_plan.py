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

from kernels.overlap import launches_dependents
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

AHEAD_TOKENS = 4
"""Largest bucket of which keys are read before the queries are there. ms a step of the 8B on an H200 at 1,
4, 8 and 16 rows of 192 keys: 2.45, 2.57, 2.74, 3.09 so, 2.58, 2.65, 2.72, 2.84 else.
"""
AHEAD_KEYS = 2048
"""Of all sequences of such a bucket together, at most: 8 splits, 256 programs of 32 query heads."""

DECODED_TOKENS = 128
"""Of a step, at most, whose chunks are decoded token by token."""
DECODED_KEYS = 1 << 14
"""Of all tokens of its chunks together, at most: every token reads all keys before it, by bytes 16 us a layer
of the 8B on an H200 where no cache helps. Chosen, not measured.
"""

AHEAD_HEAD_DIM = 128
"""Numbers of a key: 256 keys and values then fill two thirds of a multiprocessor's registers."""

MAX_ROWS = 1 << 15
"""Rows and tokens share a word of an item: 16 bits each, and no sign."""


def split_lengths(total_lens: IntArray) -> IntArray:
    """Returns the keys per split of sequences of these lengths."""
    step = MAX_SPLITS * SPLIT_STEP
    return np.maximum(SPLIT_KEYS, -(-total_lens // step) * SPLIT_STEP)


def ahead_keys(num_tokens: int) -> int:
    """Returns the most keys of a sequence that are read ahead in a bucket; 0 where none are."""
    return AHEAD_KEYS // num_tokens if num_tokens <= AHEAD_TOKENS else 0


def decodes_chunks(query_lens: IntArray, total_lens: IntArray) -> bool:
    """Returns whether a step's chunks are so short that their tokens are decoded, each by itself: those of
    rows with drafts, mostly.
    """
    if query_lens.sum() > DECODED_TOKENS:
        return False
    keys = query_lens * total_lens
    return bool(keys[query_lens > 1].sum() <= DECODED_KEYS)


def can_read_ahead(geometry: AttentionGeometry, device: torch.device) -> bool:
    """Returns whether keys can be read before the queries are there, and held meanwhile."""
    return launches_dependents(device) and geometry.head_dim <= AHEAD_HEAD_DIM


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
    counts_3: Tensor
    """int32: decode items, prefill tiles, decode items ahead."""
    items_I4: Tensor
    """int32, decode items: token and row, first key, key after the last, sequence and split and splits."""
    ahead_items_I4: Tensor
    """int32, like `items_I4`: of short sequences, whose keys are read ahead."""
    tiles_I4: Tensor
    """int32, prefill tiles: first token, tokens, position of the first, row."""
    partials_IHD: Tensor
    """fp32 scratch: shares of split sequences."""
    stats_IH2: Tensor
    """fp32 scratch: their largest scores and sums of weights."""
    arrivals_SH: Tensor
    """int32, zero between launches: per sequence and head, the splits done."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    decode_programs: int
    """0 where no sequence of such a step has too many keys to be read ahead."""
    ahead_items: int
    """Most items ahead that a step of this bucket can have."""
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
        *,
        reads_ahead: bool = False,
    ) -> None:
        """
        Args:
            max_rows: rows of the batch state; row `max_rows` is the null row.
            max_tokens: of the largest bucket.
            max_blocks: of one sequence.
            reads_ahead: keys of short sequences are read ahead in small buckets. Which bits a row has depends
                then on whether its bucket is small, and on its own length, as always.
        """
        num_heads, num_kv_heads, head_dim = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
        if num_heads % num_kv_heads or num_heads // num_kv_heads > PREFILL_ROWS:
            raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} key heads")
        if max_rows >= MAX_ROWS or max_tokens > 2 * MAX_ROWS:
            raise ValueError(f"{max_rows} rows and {max_tokens} tokens: more than an item can name")
        device = torch.device(device)
        self.max_rows, self.max_tokens, self.max_len = max_rows, max_tokens, max_blocks * geometry.block_size
        self._geometry = geometry
        self._reads_ahead = reads_ahead
        self._tile_tokens = PREFILL_ROWS // (num_heads // num_kv_heads)
        self._num_sms = (
            torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        )
        num_items = max_rows * max_splits(self.max_len)
        self._positions = inputs.field("attention.positions", max_tokens)
        self._rows = inputs.field("attention.rows", max_tokens)
        self._counts = inputs.field("attention.counts", 3)
        self._items = inputs.field("attention.items", (num_items, 4))
        self._ahead_items = inputs.field(
            "attention.ahead_items", (AHEAD_KEYS // SPLIT_KEYS + AHEAD_TOKENS, 4)
        )
        self._tiles = inputs.field("attention.tiles", (self._most_tiles(max_tokens), 4))
        self.tables_RB = torch.zeros(max_rows + 1, max_blocks, dtype=torch.int32, device=device)
        """int32: written by the owner of the batch state, between steps, on the stream of the steps."""
        self._partials = torch.empty(num_items, num_heads, head_dim, dtype=torch.float32, device=device)
        self._stats = torch.empty(num_items, num_heads, 2, dtype=torch.float32, device=device)
        self._arrivals = torch.zeros(max_rows, num_heads, dtype=torch.int32, device=device)

    def ahead_keys(self, num_tokens: int) -> int:
        """Returns the most keys of a sequence that are read ahead in a bucket; 0 where none are."""
        return ahead_keys(num_tokens) if self._reads_ahead else 0

    def bucket(self, num_tokens: int, decode_only: bool, has_long: bool = True) -> DeviceStep:
        """What to launch steps of up to `num_tokens` tokens with. Only after `inputs.freeze`.

        Args:
            decode_only: every token of such a step is decoded by itself, so prefill is not launched.
            has_long: a sequence of such a step may have more than `ahead_keys` tokens, or several of them in
                the step. Otherwise only the kernel is launched that reads keys ahead.
        """
        if num_tokens > self.max_tokens or (decode_only and num_tokens > self.max_rows):
            raise ValueError(
                f"a bucket of {num_tokens} tokens in a plan of {self.max_tokens} and {self.max_rows} rows"
            )
        geometry = self._geometry
        most_rows = min(num_tokens, self.max_rows)
        most_items = most_rows * max_splits(self.max_len)
        most_ahead = most_rows * max_splits(min(self.max_len, self.ahead_keys(num_tokens)))
        assert has_long or most_ahead, f"a bucket of {num_tokens} tokens reads no keys ahead"
        return DeviceStep(
            num_tokens=num_tokens,
            decode_only=decode_only,
            positions_T=self._positions.device[:num_tokens],
            rows_T=self._rows.device[:num_tokens],
            tables_RB=self.tables_RB,
            counts_3=self._counts.device,
            items_I4=self._items.device,
            ahead_items_I4=self._ahead_items.device,
            tiles_I4=self._tiles.device,
            partials_IHD=self._partials,
            stats_IH2=self._stats,
            arrivals_SH=self._arrivals,
            num_heads=geometry.num_heads,
            num_kv_heads=geometry.num_kv_heads,
            head_dim=geometry.head_dim,
            block_size=geometry.block_size,
            decode_programs=min(most_items * geometry.num_kv_heads, self._num_sms * DECODE_PROGRAMS_PER_SM)
            if has_long
            else 0,
            ahead_items=most_ahead,
            prefill_tiles=0 if decode_only else self._most_tiles(num_tokens),
        )

    def fill(
        self,
        rows_S: IntArray,
        query_lens_S: IntArray,
        total_lens_S: IntArray,
        num_tokens: int,
        *,
        decode_only: bool = False,
    ) -> IntArray:
        """Writes one step. Returns the positions of its tokens, in host memory that a later step overwrites.

        Args:
            rows_S: row of the batch state of each sequence, in the order of the flattened batch; none at all
                for a step that is all filling.
            query_lens_S: tokens of this step. One token is decoded, more are a prefill chunk, unless
                `decode_only`: then each of them is decoded.
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
            self._fill_decode(np.arange(num_seqs), rows_S, total_lens_S, num_tokens)
            counts[1] = 0
        else:
            owner = np.repeat(np.arange(num_seqs), query_lens_S)
            positions[:used] = np.arange(used) + (total_lens_S - ends)[owner]
            rows[:used] = rows_S[owner]
            single = query_lens_S == 1
            if decode_only:
                totals = positions[:used] + 1
                self._fill_decode(np.arange(used), rows[:used], totals, num_tokens, single[owner])
                counts[1] = 0
            else:
                self._fill_decode(ends[single] - 1, rows_S[single], total_lens_S[single], num_tokens)
                wide = ~single
                query_lens = query_lens_S[wide]
                counts[1] = self._fill_prefill(
                    ends[wide] - query_lens, query_lens, rows_S[wide], total_lens_S[wide]
                )
        positions[used:num_tokens] = -1
        rows[used:num_tokens] = self.max_rows
        return positions[:used]

    def _fill_decode(
        self,
        tokens: IntArray,
        rows: IntArray,
        total_lens: IntArray,
        num_tokens: int,
        has_old_keys: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Writes the decode items of a step, those ahead in a list of their own.

        `has_old_keys`: tokens of which all keys but their own are older than the step; by default all are so.
        """
        counts, most_keys = self._counts.host, self.ahead_keys(num_tokens)
        if not most_keys:
            counts[0], counts[2] = _write_items(self._items.host, tokens, rows, total_lens), 0
            return
        is_ahead = total_lens <= most_keys
        if has_old_keys is not None:
            is_ahead &= has_old_keys
        for index, items, which in (
            (0, self._items.host, ~is_ahead),
            (2, self._ahead_items.host, is_ahead),
        ):
            counts[index] = _write_items(items, tokens[which], rows[which], total_lens[which])

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


def _write_items(items: IntArray, tokens: IntArray, rows: IntArray, total_lens: IntArray) -> int:
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
    items[:num_items, 0] = (tokens | rows << 16)[owner]
    items[:num_items, 1] = first_keys
    items[:num_items, 2] = np.minimum(first_keys + split_lens[owner], total_lens[owner])
    items[:num_items, 3] = owner | split << 16 | splits[owner] << 24
    return num_items
