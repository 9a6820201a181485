"""Describes a step's batch for attention: which tokens belong to which sequence, and where their keys are.

A host-side description (numpy) of a flattened batch; each device derives its own plan from it, once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """S sequences, T tokens flattened in sequence order; built by `build`."""

    query_starts: IntArray
    """[S] first token of each sequence in the flattened batch."""
    query_lens: IntArray
    """[S] tokens of each sequence in this step, at least 1."""
    total_lens: IntArray
    """[S] tokens each sequence has in the cache once this step is written."""
    block_tables: IntArray
    """[S, >= longest] block ids; entries beyond a sequence's blocks are ignored."""
    slot_mapping: IntArray
    """[T] where each token's key and value go: block id * block size + offset."""
    positions: IntArray
    """[T] position of each token in its sequence."""
    block_size: int

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def num_seqs(self) -> int:
        return len(self.query_lens)

    @property
    def max_total_len(self) -> int:
        return int(self.total_lens.max())

    @property
    def started_blocks(self) -> IntArray:
        """Blocks whose first slot is written in this step: other contents are a former owner's."""
        starts = self.slot_mapping[self.slot_mapping % self.block_size == 0]
        return starts // self.block_size

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int] | IntArray,
        total_lens: Sequence[int] | IntArray,
        block_tables: Sequence[Sequence[int]] | IntArray,
        block_size: int,
    ) -> AttentionMetadata:
        """Derives positions and slots.

        Args:
            query_lens: tokens of this step, per sequence, in token order of the flattened batch.
            total_lens: tokens of the sequence up to and including this step's.
            block_tables: a row per sequence; rows may be longer than needed, and all have one length.
        """
        query_lens = np.asarray(query_lens, dtype=np.int64)
        total_lens = np.asarray(total_lens, dtype=np.int64)
        tables = np.asarray(block_tables)
        if not (len(query_lens) == len(total_lens) == len(tables)) or not len(query_lens):
            raise ValueError(
                "query_lens, total_lens and block_tables must name the same sequences, at least one"
            )
        if (query_lens < 1).any() or (query_lens > total_lens).any():
            raise ValueError("every sequence needs 1 <= query_len <= total_len")
        if tables.ndim != 2 or tables.shape[1] * block_size < total_lens.max():
            raise ValueError(f"block_tables {tables.shape} cannot hold {total_lens.max()} tokens")
        query_ends = np.cumsum(query_lens)
        query_starts = query_ends - query_lens
        owner = np.repeat(np.arange(len(query_lens)), query_lens)
        first_position = total_lens - query_lens
        positions = np.arange(query_ends[-1]) - query_starts[owner] + first_position[owner]
        blocks = tables[owner, positions // block_size].astype(np.int64)
        slot_mapping = blocks * block_size + positions % block_size
        return cls(query_starts, query_lens, total_lens, tables, slot_mapping, positions, block_size)
