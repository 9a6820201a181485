"""Fields share one block: what is written to one is read there and nowhere else."""

import numpy as np
import pytest
import torch

from kernels.step_inputs import StepInputs


def test_fields_are_read_where_they_were_written() -> None:
    inputs = StepInputs("cpu")
    rows = inputs.field("rows", 5)
    seeds = inputs.field("seeds", (2, 3), torch.int64)
    scales = inputs.field("scales", 7, torch.float32)
    inputs.freeze()
    address = seeds.device.data_ptr()
    for step in range(4):
        inputs.begin()
        rows.host[:] = step
        seeds.host[:] = np.arange(6).reshape(2, 3) + step
        scales.host[:] = step / 2
        inputs.send()
        assert rows.device.tolist() == [step] * 5
        assert seeds.device.tolist() == [[step, step + 1, step + 2], [step + 3, step + 4, step + 5]]
        assert scales.device.tolist() == [step / 2] * 7
        assert seeds.device.data_ptr() == address


def test_layout_is_fixed_once_frozen() -> None:
    inputs = StepInputs("cpu")
    inputs.field("rows", 5)
    inputs.freeze()
    with pytest.raises(AssertionError, match="frozen"):
        inputs.field("late", 1)


def test_a_step_that_is_prepared_leaves_the_one_that_was_sent_as_it_is() -> None:
    inputs = StepInputs("cpu")
    rows = inputs.field("rows", 3)
    inputs.freeze()
    inputs.begin()
    rows.host[:] = 1
    inputs.send()
    inputs.begin()
    rows.host[:] = 2
    assert rows.device.tolist() == [1, 1, 1]
    inputs.send()
    assert rows.device.tolist() == [2, 2, 2]
