"""The split of a GPU's memory is the engine's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.device.gpu_runner import DeviceRunner
from engine.device.runner_options import BatchLimits
from engine.planner.errors import InvalidPlan
from engine.planner.hardware import GPUS
from engine.planner.memory_split import MemorySplit, scratch_bytes, split_memory
from engine.planner.shapes import published_shape
from engine.planner.workload import AdapterLoad, EngineLimits

CONFIG = published_shape("llama-3.1-8b")


def split(
    quantization: str = "fp8", gpu: str = "h200", gpus: int = 1, model: str = "llama-3.1-8b"
) -> MemorySplit:
    return split_memory(
        published_shape(model), quantization, "auto", GPUS[gpu], gpus, EngineLimits(), AdapterLoad(1000)
    )


@pytest.mark.parametrize("limits", [EngineLimits(), EngineLimits(max_rows=512, max_batch_tokens=256)])
def test_scratch_is_what_the_runner_reserves(limits: EngineLimits) -> None:
    batch = BatchLimits(limits.max_rows, CONFIG.max_position, limits.max_batch_tokens)
    assert scratch_bytes(CONFIG, limits) == DeviceRunner.scratch_bytes(CONFIG, batch)


def test_parts_fill_the_share_of_the_gpu() -> None:
    for found in (split(), split("none"), split(gpu="h100"), split(gpus=2, model="llama-3.1-70b")):
        parts = found.weight_bytes + found.scratch_bytes + found.adapter_pool_bytes + found.kv_bytes
        budget = 0.9 * found.total_bytes
        assert budget - 64 * 131_072 < parts < budget + 64 * 131_072
        assert found.kv_tokens > 0
        assert 0 < found.resident_adapters <= 256


def test_smaller_weights_leave_more_for_keys_and_values() -> None:
    assert split("none").kv_tokens < split("fp8").kv_tokens < split("int4").kv_tokens


def test_without_adapters_they_take_nothing() -> None:
    found = split_memory(CONFIG, "fp8", "auto", GPUS["h200"], 1, EngineLimits(), AdapterLoad())
    assert found.adapter_pool_bytes == found.resident_adapters == found.host_adapters == 0


def test_a_model_that_does_not_fit() -> None:
    with pytest.raises(InvalidPlan, match=r"memory does not suffice.*--tensor-parallel"):
        split("none", model="llama-3.1-70b", gpu="h100")
    assert split("none", model="llama-3.1-70b", gpus=2).kv_tokens > 0


def test_the_context_bounds_the_cache() -> None:
    short = replace(CONFIG, max_position=1024)
    found = split_memory(short, "fp8", "auto", GPUS["h200"], 1, EngineLimits(), AdapterLoad())
    assert found.kv_tokens == 256 * 1024
