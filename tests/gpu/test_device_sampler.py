"""The sampler of the device runner on the device: the draws of a CPU's, without waiting for any."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.batch import LaunchedStep, StepResult
from tests.engine.runner.draws import KINDS, Rig, both_over_many_steps

pytestmark = pytest.mark.gpu


def agree(found: StepResult, expected: StepResult) -> None:
    """The same tokens; log-probabilities but for their last bits."""
    assert found.failed == expected.failed
    kept = [place for place in range(len(found.token_ids)) if place not in found.failed]
    assert [found.token_ids[p] for p in kept] == [expected.token_ids[p] for p in kept]
    assert found.logprobs.keys() == expected.logprobs.keys()
    for place, one in found.logprobs.items():
        other = expected.logprobs[place]
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [top.token_id for top in one.top] == [top.token_id for top in other.top]


@pytest.mark.parametrize("vocab_size", [300, 32_000])
def test_draws_are_a_cpu_s_while_a_step_ahead(vocab_size: int, device: torch.device) -> None:
    both_over_many_steps(Rig(2 * len(KINDS), vocab_size, device), 24, agree)


def test_launching_waits_for_nothing(device: torch.device) -> None:
    """Behind half a second of work on the device the host is back at once, whatever the rows ask for."""
    size = 2 * len(KINDS)
    rig = Rig(size, 32_000, device)
    for row in range(size):
        rig.sampler.admit(row, KINDS[row % len(KINDS)], row, [1, 2, 3], [4])
    logits = torch.randn(size, 32_000, device=device)
    rows, lens = np.arange(size), np.ones(size, np.int64)

    def two_steps() -> tuple[LaunchedStep, LaunchedStep]:
        first = rig.launch(logits, rows, lens)
        rig.sampler.release(7)
        rig.sampler.admit(7, KINDS[7], 7, [1, 2, 3], [4, 5])
        return first, rig.launch(logits, rows, lens + 1)

    for launched in two_steps():  # compiled and allocated
        launched.result()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    first, second = two_steps()
    assert not torch.cuda.current_stream().query(), "the host did not wait"
    assert len(first.result().token_ids) == len(second.result().token_ids) == size
