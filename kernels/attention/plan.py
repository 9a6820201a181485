"""Cuts a step's attention into dense tiles for the torch path.

A tile is B sequences with t queries each over L keys, gathered into one dense problem. Decoding sequences
share tiles with others of similar length, so that padding is bounded; prefill chunks share them with others
of the same shape, and are cut along their queries. A plan serves every layer of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.attention.metadata import AttentionMetadata, IntArray
from kernels.workspace import Workspace

MAX_WASTED_BLOCKS = 24
"""Padding blocks a decode tile may gather: another tile costs about as much as 25 blocks."""
MAX_TILE_BLOCKS = 1024
"""Blocks one decode tile gathers: bounds the scratch memory, not the batch."""
MAX_TILE_QUERIES = 128
MAX_GROUP_QUERIES = 512
"""Of all sequences of a prefill tile: more would no longer stay in cache."""
MAX_TILE_SCORES = 1 << 23
"""Elements of one prefill tile's score matrix over all heads (32 MiB of fp32)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """B sequences with t queries each, over L keys; L is a multiple of the block size."""

    rows: Tensor | slice
    """B * t rows of the flattened batch, sequence-major."""
    num_seqs: int
    num_queries: int
    num_keys: int
    gather: Tensor
    """int64 [2 * B * Hkv * L / block]: rows of the cache seen as `[N * 2 * Hkv, block * D]`."""
    mask: Tensor
    """fp32 [B, 1, t, 1, L]: 0 where the query sees the key, -inf elsewhere."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The tiles of one step, for a cache of given shape."""

    tiles: list[Tile]
    num_tokens: int
    num_kv_heads: int
    block_size: int
    workspace: Workspace

    @classmethod
    def build(
        cls, metadata: AttentionMetadata, num_heads: int, num_kv_heads: int, workspace: Workspace
    ) -> AttentionPlan:
        """Cuts a step into tiles; they cover every token exactly once."""
        cut = _Cut(metadata, num_heads, num_kv_heads, workspace.device)
        tiles = [cut.decode_tile(seqs) for seqs in cut.decode_groups()]
        for seqs in cut.prefill_groups():
            tiles.extend(cut.prefill_tiles(seqs))
        return cls(tiles, metadata.num_tokens, num_kv_heads, metadata.block_size, workspace)


class _Cut:
    """One step being cut."""

    def __init__(
        self, metadata: AttentionMetadata, num_heads: int, num_kv_heads: int, device: torch.device
    ) -> None:
        self.metadata = metadata
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.device = device
        self.num_blocks = -(-metadata.total_lens // metadata.block_size)

    def decode_groups(self) -> Iterator[IntArray]:
        """Sequences of one query, longest first, cut where padding to the longest wastes too much."""
        seqs = np.flatnonzero(self.metadata.query_lens == 1)
        if not len(seqs):
            return
        lens = self.num_blocks[seqs]
        if lens.max() * len(seqs) - lens.sum() <= MAX_WASTED_BLOCKS and lens.sum() <= MAX_TILE_BLOCKS:
            yield seqs
            return
        seqs = seqs[np.argsort(-lens, kind="stable")]
        first, wasted = 0, 0
        for index, num_blocks in enumerate(self.num_blocks[seqs].tolist()):
            longest = int(self.num_blocks[seqs[first]])
            wasted += longest - num_blocks
            full = (index - first + 1) * longest > MAX_TILE_BLOCKS
            if index > first and (wasted > MAX_WASTED_BLOCKS or full):
                yield seqs[first:index]
                first, wasted = index, 0
        yield seqs[first:]

    def decode_tile(self, seqs: IntArray) -> Tile:
        rows = self.metadata.query_starts[seqs]
        total_lens = self.metadata.total_lens[seqs]
        num_blocks = int(self.num_blocks[seqs].max())
        tables = self.metadata.block_tables[seqs, :num_blocks]
        keys = np.arange(num_blocks * self.metadata.block_size)
        # Beyond a sequence's blocks its table may hold anything: read the null block instead.
        tables = np.where(np.arange(num_blocks) < self.num_blocks[seqs, None], tables, 0)
        hidden = keys >= total_lens[:, None]
        return Tile(
            rows=self._rows(rows),
            num_seqs=len(seqs),
            num_queries=1,
            num_keys=len(keys),
            gather=self._gather(tables),
            mask=self._mask(hidden[:, None, :]),
        )

    def prefill_groups(self) -> Iterator[IntArray]:
        """Sequences of several queries; those of one shape go together, as far as they fit one tile."""
        metadata = self.metadata
        wide = np.flatnonzero(metadata.query_lens > 1)
        if not len(wide):
            return
        shapes = np.stack([metadata.query_lens[wide], metadata.total_lens[wide]])
        _, kinds = np.unique(shapes, axis=1, return_inverse=True)
        for kind in range(kinds.max() + 1):
            alike = wide[kinds == kind]
            query_len, num_blocks = int(metadata.query_lens[alike[0]]), int(self.num_blocks[alike[0]])
            num_scores = query_len * self.num_heads * num_blocks * metadata.block_size
            limits = (
                MAX_GROUP_QUERIES // query_len,
                MAX_TILE_BLOCKS // num_blocks,
                MAX_TILE_SCORES // num_scores,
            )
            size = max(1, min(limits))
            for first in range(0, len(alike), size):
                yield alike[first : first + size]

    def prefill_tiles(self, seqs: IntArray) -> Iterator[Tile]:
        """Sequences of one shape, cut along their queries."""
        metadata, block_size = self.metadata, self.metadata.block_size
        total_len, query_len = int(metadata.total_lens[seqs[0]]), int(metadata.query_lens[seqs[0]])
        starts = metadata.query_starts[seqs]
        per_query = self.num_heads * int(self.num_blocks[seqs[0]]) * block_size
        step = min(MAX_TILE_QUERIES, max(16, MAX_TILE_SCORES // per_query))
        for first in range(0, query_len, step):
            last = min(first + step, query_len)
            positions = np.arange(total_len - query_len + first, total_len - query_len + last)
            num_blocks = int(positions[-1]) // block_size + 1
            hidden = np.arange(num_blocks * block_size) > positions[:, None]
            rows = (starts[:, None] + np.arange(first, last)).reshape(-1)
            yield Tile(
                rows=self._rows(rows),
                num_seqs=len(seqs),
                num_queries=last - first,
                num_keys=num_blocks * block_size,
                gather=self._gather(metadata.block_tables[seqs, :num_blocks]),
                mask=self._mask(hidden[None]),
            )

    def _rows(self, rows: IntArray) -> Tensor | slice:
        """A view instead of a copy where rows follow one another."""
        contiguous = int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((np.diff(rows) == 1).all())
        return slice(int(rows[0]), int(rows[-1]) + 1) if contiguous else self._to_device(rows)

    def _gather(self, tables: IntArray) -> Tensor:
        """[B, blocks] -> cache rows in the order [key or value, sequence, head, block]."""
        planes = np.arange(2 * self.num_kv_heads).reshape(2, 1, self.num_kv_heads, 1)
        rows = tables.astype(np.int64)[None, :, None, :] * (2 * self.num_kv_heads) + planes
        return self._to_device(rows.reshape(-1))

    def _mask(self, hidden: np.ndarray) -> Tensor:
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
        return self._to_device(mask[:, None, :, None, :])

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
