"""From a plan to the model's inputs and back: flattening, batch state, and what it costs."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.batch import NO_SLOT, Batch, NewRow, Scheduled
from engine.device.cpu_runner import ModelRunner
from engine.lora.pool import AdapterPool
from engine.protocol import SamplingParams
from tests.adapters.peft_files import tiny_config
from tests.support.speed import calls_of_nothing, times_as_long

CONFIG = tiny_config(max_position_embeddings=1024)
GREEDY_FACTOR = SamplingParams(64, temperature=0.0)


class RecordingModel:
    """Answers every token t with t + 1, and keeps what it was asked."""

    config, device, dtype, group = CONFIG, torch.device("cpu"), torch.float32, None

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []

    def forward(self, input_ids_T, positions_T, attention, kv, lora=None):
        work = lora and lora._work
        self.calls.append(
            SimpleNamespace(
                ids=input_ids_T.tolist(),
                positions=positions_T.tolist(),
                query_lens=attention.query_lens.tolist(),
                total_lens=attention.total_lens.tolist(),
                slots=attention.slot_mapping.tolist(),
                adapters=sorted(work.item_slots) if work else [],
            )
        )
        return input_ids_T.float()[:, None].repeat(1, 2)

    def logits(self, hidden_SH):
        logits = torch.zeros(len(hidden_SH), CONFIG.vocab_size)
        logits[torch.arange(len(hidden_SH)), (hidden_SH[:, 0].long() + 1) % CONFIG.vocab_size] = 1.0
        return logits


def make(num_blocks: int = 64, max_rows: int = 8, num_slots: int = 4) -> tuple[ModelRunner, RecordingModel]:
    model = RecordingModel()
    pool = AdapterPool(CONFIG, num_slots)
    return ModelRunner(model, pool, num_blocks, 4, max_rows, 256), model


def new(row: int, token_ids: list[int], block_ids: list[int], *, computed_len: int = 0, **fields) -> NewRow:
    fields = {"prompt_len": len(token_ids), "sampling": GREEDY_FACTOR, "seed": 0, "slot": NO_SLOT} | fields
    return NewRow(row, f"r{row}", token_ids, computed_len=computed_len, block_ids=block_ids, **fields)


def test_a_mixed_step_is_flattened_in_the_order_of_the_plan():
    runner, model = make()
    result = runner.execute(
        Batch(
            0,
            new_rows=[new(2, [10, 11, 12], [5]), new(0, [20, 21, 22, 23, 24, 25], [7, 3], computed_len=4)],
            scheduled=[Scheduled(2, 3, True), Scheduled(0, 1, False)],
        )
    )
    assert result.token_ids == [13]
    result = runner.execute(
        Batch(
            1,
            new_rows=[new(5, [30, 31], [9])],
            scheduled=[Scheduled(2, 1, True), Scheduled(0, 1, True), Scheduled(5, 2, True)],
        )
    )
    assert result.token_ids == [14, 26, 32]
    first, second = model.calls
    assert first.ids == [10, 11, 12, 24]
    assert first.positions == [0, 1, 2, 4]
    assert first.slots == [20, 21, 22, 12]
    assert (first.query_lens, first.total_lens) == ([3, 1], [3, 5])
    assert second.ids == [13, 25, 30, 31]
    assert second.positions == [3, 5, 0, 1]
    assert second.slots == [23, 13, 36, 37]


def test_tokens_of_one_slot_lie_side_by_side_and_results_keep_the_order_of_the_plan():
    runner, model = make()
    slots = [3, -1, 1, 3, 1, -1]
    rows = [
        new(row, [10 * row + 1] * (row + 1), [row + 1, row + 20], slot=slot) for row, slot in enumerate(slots)
    ]
    shares = [Scheduled(row, row + 1, True) for row in range(6)]
    shares[4] = Scheduled(4, 3, False)
    result = runner.execute(Batch(0, new_rows=rows, scheduled=shares))
    assert result.token_ids == [2, 12, 22, 32, 52]
    # Slot 3 has 1 + 4 tokens, slot 1 has 3 + 3, the base comes last; within a slot the plan's order stays.
    assert model.calls[0].ids == [1] + [31] * 4 + [21] * 3 + [41] * 3 + [11] * 2 + [51] * 6
    # Decoding alone, there is nothing to gain: the order of the plan stays.
    decode = [Scheduled(row, 1, True) for row in (3, 0, 5)]
    assert runner.execute(Batch(1, scheduled=decode)).token_ids == [33, 3, 53]
    assert model.calls[1].ids == [32, 2, 52]


def test_drawn_tokens_are_the_next_input_and_blocks_grow():
    runner, model = make()
    runner.execute(Batch(0, new_rows=[new(1, [10, 11, 12], [5])], scheduled=[Scheduled(1, 3, True)]))
    runner.execute(Batch(1, scheduled=[Scheduled(1, 1, True)]))
    result = runner.execute(Batch(2, grown=[(1, [8])], scheduled=[Scheduled(1, 1, True)]))
    assert result.token_ids == [15]
    assert [call.ids for call in model.calls] == [[10, 11, 12], [13], [14]]
    assert model.calls[2].slots == [32]


def test_a_row_freed_and_taken_in_one_batch_is_the_new_one():
    runner, model = make()
    first = new(0, [10, 11], [5], slot=2, sampling=SamplingParams(64, temperature=0.0, logit_bias={50: 99.0}))
    assert runner.execute(Batch(0, new_rows=[first], scheduled=[Scheduled(0, 2, True)])).token_ids == [50]
    result = runner.execute(
        Batch(1, freed_rows=[0], new_rows=[new(0, [40, 41, 42], [6])], scheduled=[Scheduled(0, 3, True)])
    )
    assert result.token_ids == [43]
    assert model.calls[1].slots == [24, 25, 26]
    assert model.calls[0].adapters == [2]
    assert model.calls[1].adapters == []


def test_a_row_that_returns_after_preemption_counts_what_it_had_drawn():
    sampling = SamplingParams(64, temperature=0.0, min_tokens=3, logit_bias={2: 5.0})
    runner, _ = make()
    returning = new(0, [10, 11, 12], [5], prompt_len=1, sampling=sampling)
    assert runner.execute(Batch(0, new_rows=[returning], scheduled=[Scheduled(0, 3, True)])).token_ids == [13]
    assert runner.execute(Batch(1, scheduled=[Scheduled(0, 1, True)])).token_ids == [2]


def test_a_step_that_only_prefills_draws_nothing():
    runner, _ = make()
    result = runner.execute(Batch(0, new_rows=[new(0, [10] * 8, [1, 2])], scheduled=[Scheduled(0, 5, False)]))
    assert (result.token_ids, result.failed, result.logprobs) == ([], [], {})


@pytest.mark.parametrize(
    ("scheduled", "reason"),
    [
        (Scheduled(0, 3, True), "disagree"),
        (Scheduled(0, 5, False), "disagree"),
        (Scheduled(0, 6, True), "disagree"),
        (Scheduled(0, 0, False), "without tokens"),
    ],
)
def test_a_plan_at_odds_with_the_state_is_an_error(scheduled, reason):
    runner, _ = make()
    with pytest.raises(AssertionError, match=reason):
        runner.execute(Batch(0, new_rows=[new(0, [10] * 5, [1, 2])], scheduled=[scheduled]))


def test_tokens_beyond_the_block_table_are_an_error():
    runner, _ = make()
    with pytest.raises(AssertionError, match="block table"):
        runner.execute(Batch(0, new_rows=[new(0, [10] * 5, [1])], scheduled=[Scheduled(0, 5, True)]))


def test_an_adapter_without_a_pool_is_an_error():
    runner = ModelRunner(RecordingModel(), None, 8, 4, 2, 64)
    with pytest.raises(AssertionError, match="slot 1 without a pool"):
        runner.execute(Batch(0, new_rows=[new(0, [10], [1], slot=1)], scheduled=[Scheduled(0, 1, True)]))


@pytest.mark.parametrize(
    "sampling", [GREEDY_FACTOR, SamplingParams(64, temperature=0.8, top_p=0.9)], ids=["greedy", "drawn"]
)
def test_a_step_of_256_decoding_rows_costs_little_beside_the_model(sampling):
    """Model excluded, in calls of nothing per row: under a millisecond for greedy rows on adapters."""
    num_rows = 256
    runner, model = make(num_blocks=num_rows * 16 + 1, max_rows=num_rows)
    hidden, logits = torch.zeros(num_rows, 2), torch.rand(num_rows, CONFIG.vocab_size)
    model.forward = lambda ids, positions, attention, kv, lora: hidden[: len(ids)]
    model.logits = lambda rows: logits
    blocks = np.arange(1, num_rows * 16 + 1).reshape(num_rows, 16).tolist()
    rows = [
        new(row, [10] * 8, blocks[row], sampling=sampling, computed_len=7, slot=row % 5 - 1)
        for row in range(num_rows)
    ]
    decode = [Scheduled(row, 1, True) for row in range(num_rows)]
    runner.execute(Batch(0, new_rows=rows, scheduled=decode))
    steps = (Batch(step, scheduled=decode) for step in itertools.count(1))
    took = times_as_long(lambda: runner.execute(next(steps)), than=calls_of_nothing(num_rows), rounds=50)
    assert took < (100 if sampling is GREEDY_FACTOR else 500)
