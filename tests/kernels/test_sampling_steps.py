"""A step's draws as an engine asks for them: `sample` over positions, padding, failed rows and places."""

import pytest
import torch

from kernels import sampling
from kernels.sampling import cases
from kernels.sampling.step import MAX_VOCABULARY, block_size, num_blocks

KINDS: list[cases.Truncation | None] = [None] * 6 + list(cases.TRUNCATIONS)
NUM_ROWS = 30
CPU = torch.device("cpu")


def sample(logits: torch.Tensor, asked: sampling.SamplingInputs, drawn: sampling.Drawn) -> None:
    sampling.sample(logits, asked, drawn, sampling.Scratch(len(logits), logits.shape[1], CPU))


@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_rows_draw_what_they_draw_alone(case):
    logits = case.logits(len(KINDS))
    asked, drawn = cases.sampling_inputs(KINDS, CPU, num_rows=NUM_ROWS)
    sample(logits, asked, drawn)
    assert drawn.finite_S[[1, 2, 3]].tolist() == [0, 0, 0]
    assert drawn.ids_S[[1, 2, 3]].tolist() == [0, 0, 0]
    assert drawn.finite_S[4:].all()
    for position in range(4, len(KINDS)):
        kind = KINDS[position]
        row = logits[position : position + 1].float()
        if kind is None:
            expected = sampling.greedy(row)[0]
        else:
            expected = sampling.draw(
                row,
                torch.tensor([kind.temperature]),
                torch.tensor([kind.top_k]),
                torch.tensor([kind.top_p]),
                torch.tensor([kind.min_p]),
                sampling.uniform(torch.tensor([5]), torch.tensor([position])),
            )
        assert int(drawn.ids_S[position]) == int(expected)
        assert int(drawn.next_ids_R[NUM_ROWS - 1 - position]) == int(expected)


def test_padding_is_left_alone_and_places_are_kept():
    asked, drawn = cases.sampling_inputs([None] * 4, CPU, num_rows=4)
    asked.rows_S[2] = 4
    asked.places_S.copy_(torch.tensor([3, 0, 1, 2]))
    logits = torch.zeros(4, 10)
    logits[torch.arange(4), torch.tensor([5, 6, 7, 8])] = 1.0
    sample(logits, asked, drawn)
    assert drawn.ids_S.tolist() == [6, -7, 8, 5]
    assert drawn.finite_S.tolist() == [1, 9, 1, 1]
    assert drawn.next_ids_R.tolist() == [8, -7, 6, 5, -7]


def test_arrays_may_be_longer_than_the_step():
    asked, drawn = cases.sampling_inputs(KINDS, CPU, num_rows=NUM_ROWS)
    sample(cases.logits(3, 40), asked, drawn)
    assert (drawn.ids_S[:3] >= 0).all()
    assert (drawn.ids_S[3:] == -7).all()


@pytest.mark.parametrize(
    ("problem", "logits", "positions"),
    [
        ("logits", torch.zeros(3), 3),
        ("logits", torch.zeros(3, 8, dtype=torch.float64), 3),
        ("side by side", torch.zeros(8, 3).t(), 3),
        ("scratch", torch.zeros(5, 8), 3),
        ("scratch", torch.zeros(3, 9), 3),
        ("parameters", torch.zeros(3, 8), 2),
    ],
)
def test_what_does_not_fit_is_refused_by_name(problem, logits, positions):
    asked, drawn = cases.sampling_inputs([None] * positions, CPU, num_rows=4)
    with pytest.raises(ValueError, match=problem):
        sampling.sample(logits, asked, drawn, sampling.Scratch(3, 8, CPU))


def test_a_vocabulary_beyond_what_sums_hold_is_refused():
    with pytest.raises(ValueError, match="vocabulary"):
        sampling.Scratch(1, MAX_VOCABULARY + 1, CPU)


@pytest.mark.parametrize("vocab_size", [50, 4_096, 128_256, 262_144])
def test_scratch_has_room_for_every_number_of_positions(vocab_size):
    scratch = sampling.Scratch(256, vocab_size, CPU)
    for positions in range(1, 257):
        blocks = positions * num_blocks(vocab_size, block_size(positions, vocab_size))
        assert blocks <= scratch.best_SB.numel()
        assert blocks <= scratch.masses_SB.numel()
