"""Keeps the state of the batch's rows between steps, on the host: tokens, lengths, slots and block tables.

Plans are checked against it. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.batch import NO_SLOT, Batch, NewRow

UNKNOWN = -1
"""A token that is drawn, or will be, and whose value the host does not have."""

Ints = npt.NDArray[np.int64]


class Shares(NamedTuple):
    """What a step computes, by scheduled row in the order of the plan."""

    rows: Ints
    query_lens: Ints
    samples: npt.NDArray[np.bool_]


class BatchState:
    """`max_rows` sequences of at most `max_len` tokens, prompt and completion together.

    Invariant of a running row: computed < total, and its block table covers computed + scheduled tokens. A
    row's total includes a token as soon as the step that draws it is launched.
    """

    def __init__(self, max_rows: int, max_len: int, block_size: int) -> None:
        self._block_size = block_size
        self.tokens = np.full((max_rows, max_len), UNKNOWN, np.int32)
        """[rows, positions]; `UNKNOWN` where the host does not have the value."""
        self.prompt_len = np.zeros(max_rows, np.int64)
        self.total_len = np.zeros(max_rows, np.int64)
        self.computed_len = np.zeros(max_rows, np.int64)
        self.slot = np.full(max_rows, NO_SLOT, np.int64)
        self.tables = np.zeros((max_rows, -(-max_len // block_size)), np.int32)
        self.num_blocks = np.zeros(max_rows, np.int64)
        self._known_len = np.zeros(max_rows, np.int64)

    def free(self, row: int) -> None:
        """Frees a row."""
        self.total_len[row] = self.computed_len[row] = self.num_blocks[row] = 0
        self.slot[row] = NO_SLOT

    def enter(self, new: NewRow) -> None:
        """Assigns a row to a request, in whatever state the last one left it."""
        row, total_len = new.row, len(new.token_ids)
        assert 0 < new.prompt_len <= total_len, (
            f"row {row}: a prompt of {new.prompt_len} in {total_len} tokens"
        )
        self.tokens[row, :total_len] = new.token_ids
        self.tokens[row, total_len : self._known_len[row]] = UNKNOWN
        self._known_len[row] = total_len
        self.prompt_len[row] = new.prompt_len
        self.total_len[row] = total_len
        self.computed_len[row] = new.computed_len
        self.slot[row] = new.slot
        self.num_blocks[row] = 0
        self.append_blocks(row, new.block_ids)

    def append_blocks(self, row: int, block_ids: Sequence[int]) -> int:
        """Appends blocks to a row's table. Returns the index of the first new entry."""
        first = int(self.num_blocks[row])
        self.tables[row, first : first + len(block_ids)] = block_ids
        self.num_blocks[row] = first + len(block_ids)
        return first

    def shares(self, batch: Batch) -> Shares:
        """Returns what is scheduled, checked against the state."""
        num_rows = len(batch.scheduled)
        flat = np.fromiter(chain.from_iterable(batch.scheduled), np.int64, count=3 * num_rows)
        table = flat.reshape(num_rows, 3)
        rows, query_lens, samples = table[:, 0], table[:, 1], table[:, 2].astype(bool)
        ends = self.computed_len[rows] + query_lens
        assert (query_lens > 0).all(), "a row without tokens is scheduled"
        assert (samples == (ends == self.total_len[rows])).all(), "plan and state disagree on what is left"
        assert (ends <= self.num_blocks[rows] * self._block_size).all(), "scheduled beyond the block table"
        return Shares(rows, query_lens, samples)

    def advance(self, shares: Shares) -> None:
        """Advances the rows of a launched step: its tokens are computed, and the tokens it draws exist."""
        self.computed_len[shares.rows] += shares.query_lens
        self.total_len[shares.rows[shares.samples]] += 1

    def learn(self, rows: Ints, token_ids: npt.NDArray[np.integer]) -> None:
        """Stores what the last step drew for `rows`, where the host reads it before the next step."""
        self.tokens[rows, self.total_len[rows] - 1] = token_ids
        self._known_len[rows] = self.total_len[rows]
