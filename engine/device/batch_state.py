"""Keeps the state of the batch's rows between steps, on the host: tokens, lengths, slots and block tables.

Plans are checked against it. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.batch import NO_SLOT, Batch, NewRow, Verified

UNKNOWN = -1
"""A token that is drawn, or will be, and whose value the host does not have."""

Ints = npt.NDArray[np.int64]


class Shares(NamedTuple):
    """What a step computes, by scheduled row in the order of the plan."""

    rows: Ints
    query_lens: Ints
    samples: npt.NDArray[np.bool_]
    num_drafts: Ints
    """Of `query_lens`; such a row draws after its known token and after each draft."""


class Draws(NamedTuple):
    """The tokens that a step draws, in order: one for a row that samples, more for a row with drafts."""

    rows: Ints
    num_ahead: Ints
    """Drafts of the row that precede the draw."""
    is_verified: npt.NDArray[np.bool_]
    """Whether the row has drafts: which of its draws count is known later."""
    ahead: list[list[int]] | None
    """Those drafts; None where no row has any."""

    def ahead_at(self, places: Ints) -> list[list[int]] | None:
        """Returns `ahead` of some of the draws."""
        return None if self.ahead is None else [self.ahead[place] for place in places.tolist()]


def positions_of_draws(last: Ints, num_draws: Ints) -> Ints:
    """Returns where a step's draws are among its tokens, given each row's last position and how many it
    has.
    """
    starts = num_draws.cumsum() - num_draws
    return (last - num_draws + 1 - starts).repeat(num_draws) + np.arange(int(num_draws.sum()))


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
        self._drafts: dict[int, list[int]] = {}
        """Of the rows whose last step had drafts."""

    def free(self, row: int) -> None:
        """Frees a row."""
        self._drafts.pop(row, None)
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

    def verify(self, verified: Verified) -> None:
        """Advances a row whose last step had drafts by the tokens that count."""
        row, token_ids, num_blocks = verified
        num_drafts = len(self._drafts.pop(row))
        begin = int(self.total_len[row])
        end = begin + len(token_ids)
        self.tokens[row, begin:end] = token_ids
        self.tokens[row, end : begin + num_drafts] = UNKNOWN
        self._known_len[row] = self.total_len[row] = end
        self.computed_len[row] = end - 1
        self.num_blocks[row] = num_blocks

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
        assert not self._drafts or self._drafts.keys().isdisjoint(rows.tolist()), "drafts were not verified"
        num_drafts = self._place_drafts(batch, rows) if batch.drafted else np.zeros_like(rows)
        assert (query_lens > 0).all(), "a row without tokens is scheduled"
        assert (samples == (ends - num_drafts == self.total_len[rows])).all(), (
            "plan and state disagree on what is left"
        )
        assert (ends <= self.num_blocks[rows] * self._block_size).all(), "scheduled beyond the block table"
        return Shares(rows, query_lens, samples, num_drafts)

    def _place_drafts(self, batch: Batch, rows: Ints) -> Ints:
        """Writes the step's drafts behind their rows' tokens. Returns how many each of `rows` has."""
        for row, token_ids in batch.drafted:
            begin = self.total_len[row]
            self.tokens[row, begin : begin + len(token_ids)] = token_ids
            # The next request in the row must not find them, whether or not they are ever verified.
            self._known_len[row] = begin + len(token_ids)
            self._drafts[row] = token_ids
        return np.array([len(self._drafts.get(row, ())) for row in rows.tolist()], np.int64)

    def draws(self, shares: Shares) -> Draws:
        """Returns what a step draws."""
        rows = shares.rows[shares.samples]
        num_drafts = shares.num_drafts[shares.samples]
        if not num_drafts.any():
            return Draws(rows, np.zeros_like(rows), np.zeros(len(rows), bool), None)
        num_draws = num_drafts + 1
        starts = num_draws.cumsum() - num_draws
        num_ahead = np.arange(int(num_draws.sum())) - starts.repeat(num_draws)
        ahead = [
            self._drafts[row][:num] if num else []
            for row, num in zip(rows.repeat(num_draws).tolist(), num_ahead.tolist(), strict=True)
        ]
        return Draws(rows.repeat(num_draws), num_ahead, (num_drafts > 0).repeat(num_draws), ahead)

    def advance(self, shares: Shares) -> None:
        """Advances the rows of a launched step: its tokens are computed, and the tokens it draws exist."""
        rows, query_lens, samples, num_drafts = shares
        if self._drafts:
            plain = num_drafts == 0
            rows, query_lens, samples = rows[plain], query_lens[plain], samples[plain]
        self.computed_len[rows] += query_lens
        self.total_len[rows[samples]] += 1

    def learn(self, rows: Ints, token_ids: npt.NDArray[np.integer]) -> None:
        """Stores what the last step drew for `rows`, where the host reads it before the next step."""
        self.tokens[rows, self.total_len[rows] - 1] = token_ids
        self._known_len[rows] = self.total_len[rows]
