"""The device's scorer, here on a CPU: the scores of the other way, a step ahead of whoever reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.batch import CompletedStep, Scored, StepResult
from engine.device.batch_state import BatchState
from engine.device.gpu_scoring import RING, DeviceScorer, LaunchedScores
from engine.device.scoring import ScoreRequests, read, score, score_requests
from tests.engine.plain.test_batch_state import entering

VOCAB, HIDDEN, MAX_TOKENS, PIECE = 50, 8, 40, 16


class Head:
    """As a model's: the next product overwrites what the last one gave."""

    def __init__(self) -> None:
        self.weight_HV = torch.randn(HIDDEN, VOCAB, generator=torch.Generator().manual_seed(1))
        self.out_PV = torch.zeros(PIECE, VOCAB)
        self.num_rows: list[int] = []

    def __call__(self, hidden_PH: Tensor) -> Tensor:
        self.num_rows.append(len(hidden_PH))
        return torch.mm(hidden_PH, self.weight_HV, out=self.out_PV[: len(hidden_PH)])


def hidden(seed: int = 0, num: int = MAX_TOKENS) -> Tensor:
    return torch.randn(num, HIDDEN, generator=torch.Generator().manual_seed(seed))


def requests(num: int, num_tops: int = 2, seed: int = 0) -> ScoreRequests:
    rng = np.random.default_rng(seed)
    return ScoreRequests(rng.integers(0, MAX_TOKENS, num), rng.integers(0, VOCAB, num), [num], [num_tops])


def scorer(head: Head) -> DeviceScorer:
    return DeviceScorer(head, MAX_TOKENS, PIECE, torch.device("cpu"))


def launch(
    scores: DeviceScorer, what: ScoreRequests, hidden_TH: Tensor, drew: StepResult | None = None
) -> LaunchedScores:
    return scores.launch(what, hidden_TH, CompletedStep(drew or StepResult([])))


def expected(head: Head, what: ScoreRequests, hidden_TH: Tensor) -> list[list[tuple[int, float, list[int]]]]:
    """By definition, in double."""
    lines = (hidden_TH.double() @ head.weight_HV.double()).log_softmax(dim=-1)[torch.from_numpy(what.at_N)]
    found, begin = [], 0
    for num, num_tops in zip(what.lens, what.num_tops, strict=True):
        part = zip(what.targets_N[begin : begin + num].tolist(), lines[begin : begin + num], strict=True)
        found.append([(t, float(line[t]), line.topk(num_tops).indices.tolist()) for t, line in part])
        begin += num
    return found


def agree(result: StepResult, wanted: list[list[tuple[int, float, list[int]]]]) -> None:
    assert len(result.scores) == len(wanted)
    for scores, entry in zip(result.scores, wanted, strict=True):
        assert scores is not None
        assert [(s.token_id, [top.token_id for top in s.top]) for s in scores] == [
            (t, ids) for t, _, ids in entry
        ]
        assert [s.logprob for s in scores] == pytest.approx([logprob for _, logprob, _ in entry], abs=1e-5)


@pytest.mark.parametrize("num", [1, PIECE - 1, PIECE, PIECE + 1, MAX_TOKENS])
@pytest.mark.parametrize("num_tops", [0, 1, 5])
def test_scores_are_right_whatever_their_number_and_products_of_one_size(num: int, num_tops: int) -> None:
    head = Head()
    what, hidden_TH = requests(num, num_tops), hidden()
    result = launch(scorer(head), what, hidden_TH, StepResult([3, 4])).result()
    assert set(head.num_rows) == {PIECE}
    assert result.token_ids == [3, 4], "what was drawn comes along"
    agree(result, expected(head, what, hidden_TH))


def test_entries_of_a_plan_get_their_own_and_as_many_of_the_likeliest_as_they_asked_for() -> None:
    head = Head()
    what = requests(20)._replace(lens=[1, 12, 7], num_tops=[3, 0, 5])
    agree(launch(scorer(head), what, hidden()).result(), expected(head, what, hidden()))


def test_steps_are_read_late_and_in_any_order() -> None:
    """Hidden states are overwritten by the next step, and so are logits and wishes."""
    head = Head()
    scores, hidden_TH = scorer(head), torch.empty(MAX_TOKENS, HIDDEN)
    flights = []
    for step in range(12):
        hidden_TH.copy_(hidden(step))
        what = requests(5 + 3 * step, step % 4, seed=step)
        flights.append((launch(scores, what, hidden_TH), expected(head, what, hidden_TH)))
        if step % 2:
            for launched, wanted in reversed(flights):
                agree(launched.result(), wanted)
            flights.clear()


def test_memory_that_was_not_read_is_not_given_to_another_step() -> None:
    scores = scorer(Head())
    flights = [launch(scores, requests(3), hidden()) for _ in range(RING)]
    with pytest.raises(AssertionError, match="the last scores in this memory have not been read"):
        launch(scores, requests(3), hidden())
    flights[0].result()
    with pytest.raises(AssertionError, match="read twice"):
        flights[0].result()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_fail_their_own_entry(bad: float) -> None:
    head = Head()
    hidden_TH = hidden()
    hidden_TH[7, 0] = bad
    what = ScoreRequests(np.array([1, 2, 6, 7, 8, 9]), np.array([4, 5, 6, 7, 8, 9]), [2, 2, 2], [1, 1, 1])
    result = launch(scorer(head), what, hidden_TH).result()
    assert [scores is None for scores in result.scores] == [False, True, False]


def test_wishes_are_found_in_any_order_of_rows() -> None:
    """Rows 3, 0 and 2 of the batch; two of them are scored, one in the midst of its prompt."""
    state = BatchState(4, 30, 4)
    for row, prompt_len, computed_len in ((0, 20, 4), (2, 9, 0), (3, 12, 8)):
        ids = [100 * row + place for place in range(prompt_len)]
        state.enter(entering(row, ids, prompt_len, list(range(1, 6)), computed_len))
    rows, query_lens = np.array([3, 0, 2]), np.array([4, 10, 9])
    what = score_requests([Scored(0, 7, 8, 2), Scored(2, 1, 8, 0)], state, rows, query_lens)
    # Row 0 computes positions 4 to 13, as rows 4 to 13 of the step; row 2 computes 0 to 8, as 14 to 22.
    assert what.at_N.tolist() == [*range(6, 14), *range(14, 22)]
    assert what.targets_N.tolist() == [*range(7, 15), *range(201, 209)]
    assert (what.lens, what.num_tops, what.most_tops) == ([8, 8], [2, 0], 2)


def test_pieces_change_nothing_but_memory() -> None:
    head = Head()
    what, hidden_TH = requests(MAX_TOKENS, 3), hidden()
    at_N, targets_N = torch.from_numpy(what.at_N), torch.from_numpy(what.targets_N)
    tables = [score(head, hidden_TH, at_N, targets_N, 3, rows) for rows in (4, 8, 16)]
    for table in tables[1:]:
        torch.testing.assert_close(table[:, :4], tables[0][:, :4], atol=1e-5, rtol=0)
    agree(StepResult([], scores=read(tables[0], what)), expected(head, what, hidden_TH))
