"""Cuts LoRA's work on a device: sizes that kernels, references and scratch memory agree on.

Everything here follows from the bucket (rows of the captured batch) and the layer's shape, never from what is
in a batch: a captured graph serves any mix of adapters, and a row's sums are cut the same way in all.
"""

from __future__ import annotations

from typing import NamedTuple

PAIR_ROWS = 2
"""Rows of a slot at a time whose products are sums of the vector units: a tensor core would be mostly idle,
and waits for shared memory."""
BLOCK_ROWS = 16
"""The smallest tile of a tensor core. With fewer rows, rows of zeros fill it."""
TILE_ROWS = 64
"""Rows of a prefill tile: one warp group's matrix product."""
TILES_FROM = 256
"""Buckets beyond this also launch the tile kernels, which pay from tens of rows of a slot on; up to this,
decoding steps are spared two launches."""


SMALL_BUCKET, MEDIUM_BUCKET = 16, 128
"""Up to these a step's time is that of one program after another, and many small programs are best. Beyond,
it is bytes."""
STEP = 128
"""What every length of K is a multiple of."""
WIDE_PAIR_CHUNKS, WIDE_PAIR_STEP = 4, 256
"""Parts of K of a pair whose inputs are wide, and columns at a time."""
TILE_PROGRAMS = 128
"""About one for every multiprocessor."""
MAX_SPLITS = 8


def chunk_size(width_in: int) -> int:
    """Columns of x that a program multiplies on tensor cores: up to 16 chunks of 512 or more."""
    chunks = min(max(width_in // 512, 1), 16)
    return -(-width_in // (chunks * STEP)) * STEP


def num_chunks(width_in: int) -> int:
    return -(-width_in // chunk_size(width_in))


def wide_pair_chunk(width_in: int) -> int:
    """Columns of x in each part of a pair whose inputs are wide."""
    return -(-width_in // (WIDE_PAIR_CHUNKS * WIDE_PAIR_STEP)) * WIDE_PAIR_STEP


def num_splits(width_in: int, bucket: int) -> int:
    """Parts into which the tile kernel cuts x's columns: `TILE_PROGRAMS` whatever the number of rows."""
    splits = 1
    while (
        splits < MAX_SPLITS
        and splits * bucket < TILE_PROGRAMS * TILE_ROWS
        and width_in // (2 * splits) >= 512
    ):
        splits *= 2
    return splits


def span_size(width_in: int, bucket: int) -> int:
    """Columns of each of the tile kernel's parts."""
    steps = -(-width_in // STEP)
    return -(-steps // num_splits(width_in, bucket)) * STEP


class WorkLimits(NamedTuple):
    """Of the work lists."""

    pairs: int
    blocks: int
    tiles: int
    split_rows: int
    """Rows in pairs and blocks."""


def max_paired(bucket: int) -> int:
    """Rows of a slot up to which they are cut into pairs: one pair, but all in buckets up to `MEDIUM_BUCKET`,
    where the second pair finds the weights in a cache, and a block would be waited for.
    """
    return bucket if bucket <= MEDIUM_BUCKET else PAIR_ROWS


def limits(bucket: int, num_slots: int, batch_invariant: bool) -> WorkLimits:
    """Of what a batch of this many rows can have. All paths are one with `batch_invariant`: blocks."""
    if batch_invariant:
        return WorkLimits(0, min(bucket, num_slots + bucket // BLOCK_ROWS), 0, bucket)
    paired = max_paired(bucket)
    # Every slot may have a row that is a pair by itself.
    pairs = min(bucket, (bucket + num_slots) // PAIR_ROWS, num_slots * -(-paired // PAIR_ROWS))
    many = min(bucket // (paired + 1), num_slots)
    if bucket <= TILES_FROM:
        blocks = min(bucket // (paired + 1), many + bucket // BLOCK_ROWS)
        return WorkLimits(pairs, blocks, 0, bucket)
    tiles = min(bucket // (BLOCK_ROWS + 1), num_slots) + bucket // TILE_ROWS
    return WorkLimits(pairs, many, tiles, min(bucket, num_slots * BLOCK_ROWS))
