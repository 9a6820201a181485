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


class Guessing(NamedTuple):
    """The placeholders of a step, in the order of the plan."""

    rows: Ints
    """The row of each placeholder."""
    counts: list[int]
    """How many each row has that has any."""

    def split(self, token_ids: Sequence[int]) -> list[list[int]]:
        """Returns the guesses of each row, given those of all placeholders."""
        found, begin = [], 0
        for num in self.counts:
            found.append(list(token_ids[begin : begin + num]))
            begin += num
        return found


NO_PLACEHOLDERS = Guessing(np.zeros(0, np.int64), [])


class Shares(NamedTuple):
    """What a step computes, by scheduled row in the order of the plan."""

    rows: Ints
    query_lens: Ints
    samples: npt.NDArray[np.bool_]
    num_drafts: Ints
    """Of `query_lens`; such a row draws after its known token and after each draft."""
    num_placeholders: Ints
    """Of `query_lens`, the last ones."""
    placeholder_slots: Ints
    """Adapter slots of the placeholders; those of rows without any mean nothing."""
    is_verified: npt.NDArray[np.bool_]
    """Rows with drafts or placeholders: what the step leaves of them is known later."""

    @property
    def guessing(self) -> Guessing:
        """The step's placeholders."""
        num = self.num_placeholders
        return Guessing(self.rows.repeat(num), num[num > 0].tolist()) if num.any() else NO_PLACEHOLDERS


class Draws(NamedTuple):
    """The tokens that a step draws, in order: one for a row that samples, more for a row with drafts."""

    rows: Ints
    num_ahead: Ints
    """Drafts of the row that precede the draw."""
    is_verified: npt.NDArray[np.bool_]
    """Whether the row has drafts or placeholders: which of its draws count is known later."""
    ahead: list[list[int]] | None
    """Those drafts; None where no row has drafts or placeholders."""

    def ahead_at(self, places: Ints) -> list[list[int]] | None:
        """Returns `ahead` of some of the draws."""
        return None if self.ahead is None else [self.ahead[place] for place in places.tolist()]


def positions_of_draws(last: Ints, num_draws: Ints) -> Ints:
    """Returns where a step's draws are among its tokens, given each row's last position and how many it
    has.
    """
    starts = num_draws.cumsum() - num_draws
    return (last - num_draws + 1 - starts).repeat(num_draws) + np.arange(int(num_draws.sum()))


def positions_of_logits(last: Ints, shares: Shares) -> Ints:
    """Returns which of a step's tokens need logits: those of its draws, then its placeholders; each in the
    order of the plan.

    `last`: the last token of each scheduled row, as the step has them.
    """
    if not shares.is_verified.any():
        return last[shares.samples]
    num_draws = np.where(shares.samples, 1 + shares.num_drafts, 0)
    at = positions_of_draws(last - shares.num_placeholders, num_draws)
    if not shares.num_placeholders.any():
        return at
    return np.concatenate((at, positions_of_draws(last, shares.num_placeholders)))


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
        """Of the rows whose last step had drafts or placeholders."""

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

    def verify(self, verified: Verified) -> range:
        """Advances a row whose last step had drafts or placeholders by the tokens that count. Returns the
        positions in its blocks at which the step computed what does not.
        """
        row, token_ids, num_blocks, last_token_id = verified
        del self._drafts[row]
        begin = int(self.total_len[row])
        end = begin + len(token_ids)
        self.tokens[row, begin:end] = token_ids
        self.tokens[row, end - 1] = last_token_id
        computed_end = int(self._known_len[row])
        self.tokens[row, end:computed_end] = UNKNOWN
        self._known_len[row] = self.total_len[row] = end
        self.computed_len[row] = end - 1
        self.num_blocks[row] = num_blocks
        return range(end - 1, min(computed_end, num_blocks * self._block_size))

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
        nothing = np.zeros_like(rows)
        num_drafts, num_placeholders, slots, is_verified = nothing, nothing, nothing, nothing.astype(bool)
        if batch.drafted:
            self._place_drafts(batch)
            order = rows.tolist()
            num_drafts = np.array([len(self._drafts.get(row, ())) for row in order], np.int64)
            is_verified = np.array([row in self._drafts for row in order], bool)
        if batch.placeholders:
            self._place_placeholders(batch)
            found = {row: (num, slot) for row, num, _, slot in batch.placeholders}
            pairs = np.array([found.get(row, (0, NO_SLOT)) for row in rows.tolist()], np.int64)
            num_placeholders, slots = pairs[:, 0], pairs[:, 1]
        assert (query_lens > 0).all(), "a row without tokens is scheduled"
        assert (samples == (ends - num_drafts - num_placeholders == self.total_len[rows])).all(), (
            "plan and state disagree on what is left"
        )
        assert (ends <= self.num_blocks[rows] * self._block_size).all(), "scheduled beyond the block table"
        return Shares(rows, query_lens, samples, num_drafts, num_placeholders, slots, is_verified)

    def _place_drafts(self, batch: Batch) -> None:
        """Writes the step's drafts behind their rows' tokens."""
        for row, token_ids in batch.drafted:
            begin = self.total_len[row]
            self.tokens[row, begin : begin + len(token_ids)] = token_ids
            # The next request in the row must not find them, whether or not they are ever verified.
            self._known_len[row] = begin + len(token_ids)
            self._drafts[row] = token_ids

    def _place_placeholders(self, batch: Batch) -> None:
        """Writes the step's placeholders behind their rows' drafts."""
        for row, num_tokens, token_id, _ in batch.placeholders:
            assert row in self._drafts, f"row {row} has placeholders, and is not among the drafted"
            begin = self._known_len[row]
            self.tokens[row, begin : begin + num_tokens] = token_id
            self._known_len[row] = begin + num_tokens

    def draws(self, shares: Shares) -> Draws:
        """Returns what a step draws."""
        rows = shares.rows[shares.samples]
        num_drafts = shares.num_drafts[shares.samples]
        is_verified = shares.is_verified[shares.samples]
        if not num_drafts.any():
            ahead: list[list[int]] | None = [[] for _ in rows] if is_verified.any() else None
            return Draws(rows, np.zeros_like(rows), is_verified, ahead)
        num_draws = num_drafts + 1
        starts = num_draws.cumsum() - num_draws
        num_ahead = np.arange(int(num_draws.sum())) - starts.repeat(num_draws)
        ahead = [
            self._drafts[row][:num] if num else []
            for row, num in zip(rows.repeat(num_draws).tolist(), num_ahead.tolist(), strict=True)
        ]
        return Draws(rows.repeat(num_draws), num_ahead, is_verified.repeat(num_draws), ahead)

    def slots_of_tokens(self, shares: Shares) -> Ints:
        """Returns the adapter slot of each token of a step, in the order of the plan."""
        slots = self.slot[shares.rows].repeat(shares.query_lens)
        if shares.num_placeholders.any():
            at = positions_of_draws(shares.query_lens.cumsum() - 1, shares.num_placeholders)
            slots[at] = shares.placeholder_slots.repeat(shares.num_placeholders)
        return slots

    def advance(self, shares: Shares) -> None:
        """Advances the rows of a launched step: its tokens are computed, and the tokens it draws exist."""
        rows, query_lens, samples = shares.rows, shares.query_lens, shares.samples
        if self._drafts:
            plain = ~shares.is_verified
            rows, query_lens, samples = rows[plain], query_lens[plain], samples[plain]
        self.computed_len[rows] += query_lens
        self.total_len[rows[samples]] += 1

    def learn(self, rows: Ints, token_ids: npt.NDArray[np.integer]) -> None:
        """Stores what the last step drew for `rows`, where the host reads it before the next step."""
        self.tokens[rows, self.total_len[rows] - 1] = token_ids
        self._known_len[rows] = self.total_len[rows]
