"""Rows on the host: what is known of their tokens, and what a plan may ask of them."""

import numpy as np
import pytest

from engine.batch import Batch, Drafted, NewRow, Placeholders, Scheduled, Verified
from engine.device.batch_state import UNKNOWN, BatchState
from engine.protocol import SamplingParams


def entering(
    row: int, token_ids: list[int], prompt_len: int, block_ids: list[int], computed: int = 0
) -> NewRow:
    return NewRow(row, "r", token_ids, prompt_len, computed, block_ids, SamplingParams(4), seed=0)


def planned(*shares: tuple[int, int, bool]) -> Batch:
    return Batch(0, scheduled=[Scheduled(*share) for share in shares])


def test_a_token_is_unknown_until_the_host_is_told() -> None:
    state = BatchState(max_rows=2, max_len=8, block_size=4)
    state.enter(entering(1, [5, 6, 7], 3, [2, 3]))
    shares = state.shares(planned((1, 3, True)))
    state.advance(shares)
    assert state.total_len[1] == 4
    assert state.computed_len[1] == 3
    assert state.tokens[1].tolist() == [5, 6, 7] + [UNKNOWN] * 5
    state.learn(np.array([1]), np.array([9]))
    assert state.tokens[1, :5].tolist() == [5, 6, 7, 9, UNKNOWN]


def test_a_row_forgets_its_former_owner() -> None:
    state = BatchState(max_rows=1, max_len=8, block_size=4)
    state.enter(entering(0, [1, 2, 3, 4, 5], 5, [7, 8]))
    state.learn(np.array([0]), np.array([5]))
    state.free(0)
    state.enter(entering(0, [9, 8], 2, [3]))
    assert state.tokens[0].tolist() == [9, 8] + [UNKNOWN] * 6
    assert state.num_blocks[0] == 1
    assert state.append_blocks(0, [4]) == 1
    assert state.tables[0].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ([(0, 0, False)], "without tokens"),
        ([(0, 2, True)], "disagree"),
        ([(0, 3, False)], "disagree"),
        ([(1, 5, True)], "block table"),
    ],
)
def test_a_plan_that_does_not_fit_the_state_is_a_bug(shares: list[tuple[int, int, bool]], why: str) -> None:
    state = BatchState(max_rows=2, max_len=8, block_size=4)
    state.enter(entering(0, [1, 2, 3], 3, [2]))
    state.enter(entering(1, [1, 2, 3, 4, 5], 5, [3]))
    with pytest.raises(AssertionError, match=why):
        state.shares(planned(*shares))


def test_drafts_of_a_request_that_ended_are_not_the_next_ones_tokens() -> None:
    """The step that verified them was its last: the row did not learn which of them count."""
    state = BatchState(2, 32, 4)
    state.enter(NewRow(0, "a", [1, 2, 3], 3, 2, [1, 2, 3], SamplingParams(9), 0))
    shares = state.shares(Batch(0, scheduled=[Scheduled(0, 4, True)], drafted=[Drafted(0, [7, 8, 9])]))
    draws = state.draws(shares)
    assert draws.rows.tolist() == [0] * 4
    assert draws.ahead == [[], [7], [7, 8], [7, 8, 9]]
    state.advance(shares)
    state.free(0)
    state.enter(NewRow(0, "b", [4], 1, 0, [1, 2, 3], SamplingParams(9), 0))
    assert state.tokens[0, :8].tolist() == [4] + [UNKNOWN] * 7


def test_a_verified_row_has_the_tokens_that_count_and_no_others() -> None:
    state = BatchState(2, 32, 4)
    state.enter(NewRow(0, "a", [1, 2, 3], 3, 2, [1, 2, 3], SamplingParams(9), 0))
    state.advance(state.shares(Batch(0, scheduled=[Scheduled(0, 4, True)], drafted=[Drafted(0, [7, 8, 9])])))
    with pytest.raises(AssertionError, match="not verified"):
        state.shares(Batch(1, scheduled=[Scheduled(0, 1, True)]))
    state.verify(Verified(0, [7, 5], 2, 5))
    assert state.tokens[0, :8].tolist() == [1, 2, 3, 7, 5, UNKNOWN, UNKNOWN, UNKNOWN]
    assert (state.total_len[0], state.computed_len[0], state.num_blocks[0]) == (5, 4, 2)
    assert state.append_blocks(0, [6]) == 2


def test_where_no_draw_counts_the_row_has_its_last_token_again() -> None:
    """It was drawn in a step that overlapped: the host did not have it, and what the device had as the row's
    last token is what the step with placeholders drew.
    """
    state = BatchState(2, 32, 4)
    state.enter(NewRow(0, "a", [1, 2, 3], 3, 0, [1, 2, 3], SamplingParams(9), 0))
    state.advance(state.shares(Batch(0, scheduled=[Scheduled(0, 3, True)])))
    assert state.tokens[0, 3] == UNKNOWN
    batch = Batch(
        1,
        scheduled=[Scheduled(0, 3, True)],
        drafted=[Drafted(0, [])],
        placeholders=[Placeholders(0, 2, 9, 0)],
    )
    state.advance(state.shares(batch))
    state.verify(Verified(0, [], 1, 6))
    assert state.tokens[0, :8].tolist() == [1, 2, 3, 6, *[UNKNOWN] * 4]
    assert (state.total_len[0], state.computed_len[0], state.num_blocks[0]) == (4, 3, 1)
