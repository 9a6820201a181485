"""How LoRA's work is cut on a device: sizes that kernels, references and scratch memory agree on.

Everything here follows from the bucket (rows of the captured batch) and the layer's shape, never from what
is in a batch: a captured graph serves any mix of adapters, and a row's sums are cut the same way in all.
"""

from __future__ import annotations

from typing import NamedTuple


class Cutting(NamedTuple):
    """Into what pieces the rows of a slot are cut, and by which kernels they are served."""

    few_rows: int
    """Rows of a slot up to which products are sums of the vector units: a tensor core would be mostly idle,
    and waits for shared memory. 0: tensor cores for all."""
    few_size: int
    """Rows of a piece of such a slot."""
    block_size: int
    """Rows of a piece of any other: the smallest tile of a tensor core. Rows of zeros fill it."""
    pieces: bool
    """A program to a piece, sums of spans added up by expand (`kernels/few.py`, `kernels/blocks.py`), or
    units of work taken off the lists in turn (`kernels/shrink.py`, `kernels/expand.py`)."""
    tiles: bool = True
    """Whether slots with many rows have tiles in buckets beyond `TILES_FROM`."""


UNITS = Cutting(2, 2, 16, False)
PIECES = Cutting(4, 2, 16, True)
DECODING = UNITS
"""What is launched unless told otherwise."""
FEW_FIELDS = 4
"""Rows that a place on the list of few has room for."""
BLOCK_ROWS = 16
"""Of a slot, beyond which buckets that have tiles make tiles of them."""
TILE_ROWS = 64
"""Rows of a prefill tile: one warp group's matrix product."""
TILES_FROM = 256
"""Buckets beyond this also launch the tile kernels, which pay from tens of rows of a slot on; up to this,
decoding steps are spared two launches."""


SMALL_BUCKET, MEDIUM_BUCKET = 16, 64
"""Up to these a step's time is that of one program after another, and many small programs are best. Beyond,
it is bytes."""
STEP = 128
"""What every length of K is a multiple of."""
TILE_PROGRAMS = 128
"""About one for every multiprocessor."""
MAX_SPLITS = 8


def chunk_size(width_in: int) -> int:
    """Columns of x that a program multiplies on tensor cores: up to 16 chunks of 512 or more."""
    chunks = min(max(width_in // 512, 1), 16)
    return -(-width_in // (chunks * STEP)) * STEP


def num_chunks(width_in: int) -> int:
    return -(-width_in // chunk_size(width_in))


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


class Limits(NamedTuple):
    """Of the work lists."""

    pairs: int
    blocks: int
    tiles: int
    split_rows: int
    """Rows in pairs and blocks."""


def limits(bucket: int, num_slots: int, cutting: Cutting) -> Limits:
    """Of what a batch of this many rows can have."""
    few_rows, few_size, size = cutting.few_rows, cutting.few_size, cutting.block_size
    smallest = min(2 * few_rows + 2, size + 1)
    """Twice the fewest rows that a block of a slot can come down to."""
    few = min(bucket, num_slots * -(-few_rows // few_size))
    many = min(bucket // (few_rows + 1), num_slots)
    blocks = min(2 * bucket // smallest, many + bucket // size)
    if not cutting.tiles or bucket <= TILES_FROM:
        return Limits(few, blocks, 0, bucket)
    blocks = min(blocks, many * -(-BLOCK_ROWS // size))
    tiles = min(bucket // (BLOCK_ROWS + 1), num_slots) + bucket // TILE_ROWS
    return Limits(few, blocks, tiles, min(bucket, num_slots * BLOCK_ROWS))


def piece_span(width_in: int, bucket: int) -> int:
    """Columns of x of a program of shrink, where a program has a piece."""
    return 512 if width_in <= 8192 else 2048


def piece_splits(width_in: int, bucket: int) -> int:
    """Spans whose sums expand adds up."""
    return -(-width_in // piece_span(width_in, bucket))


def most_piece_splits(width_in: int) -> int:
    """Of any bucket."""
    return max(piece_splits(width_in, bucket) for bucket in (1, SMALL_BUCKET + 1, MEDIUM_BUCKET + 1))
