"""The device's sampler, here on a CPU: the draws of `Sampler`, a step ahead of whoever reads them."""

import msgspec
import numpy as np
import pytest
import torch

from engine.batch import StepResult
from engine.device.gpu_sampler import RING
from engine.protocol import SamplingParams
from kernels.sampling import cases
from tests.engine.runner.draws import KINDS, Rig, both_over_many_steps
from tests.support.speed import calls_of_nothing, times_as_long

VOCAB = 300


def agree(found: StepResult, expected: StepResult) -> None:
    """Bit for bit but for failed rows, whose tokens mean nothing."""
    assert found.failed == expected.failed
    kept = [place for place in range(len(found.token_ids)) if place not in found.failed]
    assert [found.token_ids[p] for p in kept] == [expected.token_ids[p] for p in kept]
    assert all(found.token_ids[p] == 0 for p in found.failed)
    assert found.logprobs == expected.logprobs


def test_draws_are_those_of_the_other_sampler_while_a_step_ahead():
    both_over_many_steps(Rig(2 * len(KINDS), VOCAB), 24, agree)


def test_ids_become_the_inputs_of_the_next_step_by_row():
    rig = Rig(8, VOCAB)
    for row in range(8):
        rig.sampler.admit(row, KINDS[row], row, [1], [])
    logits = cases.logits(8, VOCAB)
    logits[3, 4] = torch.nan
    rows = np.array([6, 0, 3, 7])
    found = rig.draw(logits, rows, np.zeros(4, np.int64), at=np.array([1, 2, 3, 6]))
    assert rig.sampler.next_ids_R[rows].tolist() == found.token_ids
    assert found.failed == [2]
    assert found.token_ids[2] == 0
    others = [row for row in range(8) if row not in rows]
    assert rig.sampler.next_ids_R[others].tolist() == [0] * 4, "rows that did not draw"


def test_results_are_read_in_any_order_and_once():
    rig = Rig(2, VOCAB)
    rig.sampler.admit(0, KINDS[0], 0, [1], [])
    logits = [cases.logits(1, VOCAB, seed=seed) for seed in range(3)]
    row, length = np.zeros(1, np.int64), np.zeros(1, np.int64)
    first, second = (rig.launch(one, row, length) for one in logits[:2])
    assert second.result().token_ids == [int(logits[1].argmax())]
    assert first.result().token_ids == [int(logits[0].argmax())]
    with pytest.raises(AssertionError, match="read twice"):
        first.result()


def test_memory_that_was_not_read_is_not_given_to_another_step():
    rig = Rig(2, VOCAB)
    rig.sampler.admit(0, KINDS[0], 0, [1], [])
    row = np.zeros(1, np.int64)
    for _ in range(RING):
        rig.launch(cases.logits(1, VOCAB), row, row)
    with pytest.raises(AssertionError, match="the last result in this memory has not been read"):
        rig.launch(cases.logits(1, VOCAB), row, row)


def test_vocabulary_sized_state_is_kept_only_for_rows_that_are_shaped():
    rig = Rig(64, VOCAB)
    held = rig.sampler._shaping
    for row in range(64):
        rig.sampler.admit(row, KINDS[row % 6], 0, [1], [])
    assert held.num_bytes == 0
    for row in range(4):
        rig.sampler.admit(row, KINDS[6 + row], 0, [1], [])
    size = held.num_bytes
    assert size > 0
    for row in range(60):
        rig.sampler.release(row)
        rig.sampler.admit(60 - row, KINDS[6], 0, [1], [])
        rig.sampler.release(60 - row)
    assert held.num_bytes <= 2 * size
    assert (held.entry >= 0).sum() == 0


def test_a_row_that_is_old_enough_costs_no_shaping(monkeypatch):
    rig = Rig(2, VOCAB)
    rig.sampler.admit(0, KINDS[10], 0, [1], [])
    row = np.zeros(1, np.int64)
    shaped = []
    shape = rig.sampler._shaping.shape
    monkeypatch.setattr(
        rig.sampler._shaping, "shape", lambda *arguments: shaped.append(1) or shape(*arguments)
    )
    for length in range(6):
        rig.draw(cases.logits(1, VOCAB), row, row + length)
    assert len(shaped) == KINDS[10].min_tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1e308},
        {"temperature": 1e-6, "top_p": 1e-300},
        {"temperature": 1.0, "top_k": 2**63 - 1},
        {"temperature": 1.0, "top_k": 2**64 - 1, "min_p": 1.0},
        {"min_tokens": 2**64 - 1},
        {"logit_bias": {3: 1e308, 4: -1e308}},
        {"presence_penalty": 1e308, "frequency_penalty": -1e308},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308},
        {"logprobs": 10**6},
    ],
    ids=str,
)
def test_numbers_beyond_all_measure_break_no_step(changes):
    rig = Rig(2, VOCAB)
    greedy = SamplingParams(64, temperature=0.0)
    rig.sampler.admit(0, msgspec.structs.replace(greedy, **changes), 1, [3], [4, 4])
    rig.sampler.admit(1, greedy, 2, [3], [4, 4])
    logits = cases.logits(2, VOCAB)
    for step in range(3):
        found = rig.draw(logits, np.arange(2), np.full(2, 2 + step))
        assert found.failed == []
        assert found.token_ids[1] == logits[1].argmax()
        assert 0 <= found.token_ids[0] < VOCAB


def test_preparing_a_step_takes_no_time_worth_mentioning():
    """60 us for 256 rows on the machine of the benchmarks, where 256 calls of nothing take 10."""
    rig = Rig(256, VOCAB)
    for row in range(256):
        rig.sampler.admit(row, KINDS[row % 4], row, [1], [])
    rows, lens = np.arange(256), np.full(256, 5)
    assert times_as_long(lambda: rig.sampler.prepare(rows, lens), than=calls_of_nothing(256)) < 30
