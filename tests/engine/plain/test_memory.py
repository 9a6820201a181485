"""A GPU's memory: nothing is given away twice, and what does not fit is said before anything is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.device.capabilities import QUANTIZATIONS, device_kind, host_memory, num_gpus, refusal
from engine.device.memory import HOST_SHARE, KV_BYTES_ON_CPU, MemoryRequest, adapter_bytes, plan_cpu, plan_gpu
from engine.model.config import parse_config

GIB = 1 << 30
OPEN = MemoryRequest(
    num_slots=256, num_blocks=None, kv_bytes=None, adapter_bytes=None, adapter_cache_bytes=None
)
LLAMA_8B = parse_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "eos_token_id": 128001,
    }
)
H200 = {
    "budget_bytes": int(0.9 * 139 * GIB),
    "used_bytes": 10 * GIB,
    "scratch_bytes": 4 * GIB,
    "block_bytes": 2 << 20,
    "useful_blocks": 256 * 8192,
    "typical_adapter_bytes": 84 << 20,
    "host_bytes": 128 * GIB,
}


def test_an_adapter_of_rank_16_on_8b_is_84_megabytes() -> None:
    assert 83e6 < adapter_bytes(LLAMA_8B, 16) < 85e6


def test_an_open_choice_fills_the_share_and_not_more() -> None:
    plan = plan_gpu(OPEN, **H200)
    assert plan.adapter_bytes == 256 * (84 << 20)
    taken = H200["used_bytes"] + H200["scratch_bytes"] + plan.adapter_bytes + plan.kv_bytes
    assert H200["budget_bytes"] - H200["block_bytes"] < taken <= H200["budget_bytes"] + H200["block_bytes"]
    assert plan.kv_bytes == plan.num_blocks * H200["block_bytes"]
    assert plan.adapter_cache_bytes == 16 * GIB, "an eighth of the host's memory is less than the adapters'"


def test_adapters_take_a_quarter_of_what_is_left_at_most() -> None:
    plan = plan_gpu(OPEN, **(H200 | {"budget_bytes": 24 * GIB}))
    assert plan.adapter_bytes == 10 * GIB // 4
    assert plan.adapter_cache_bytes == plan.adapter_bytes


def test_no_more_blocks_than_all_rows_can_use() -> None:
    plan = plan_gpu(OPEN, **(H200 | {"useful_blocks": 100}))
    assert plan.num_blocks == 101


def test_what_is_set_is_obeyed() -> None:
    wanted = MemoryRequest(8, None, 5 * GIB, 3 * GIB, 1 * GIB)
    plan = plan_gpu(wanted, **H200)
    assert (plan.adapter_bytes, plan.adapter_cache_bytes) == (3 * GIB, 1 * GIB)
    assert plan.num_blocks == 5 * GIB // (2 << 20) + 1
    assert plan_gpu(MemoryRequest(8, 50, None, 3 * GIB, None), **H200).num_blocks == 50


@pytest.mark.parametrize(
    "wanted",
    [
        OPEN,
        MemoryRequest(256, None, 2 * GIB, None, None),
        MemoryRequest(256, 2000, None, None, None),
        MemoryRequest(256, None, None, 2 * GIB, None),
    ],
)
def test_what_does_not_fit_is_said_in_numbers(wanted: MemoryRequest) -> None:
    small = H200 | {"budget_bytes": 15 * GIB} if wanted is not OPEN else H200 | {"budget_bytes": 14 * GIB}
    with pytest.raises(ValueError, match=r"does not suffice: the budget is 1[45]\.0 GiB; .* 10\.0 GiB"):
        plan_gpu(wanted, **small)


@given(
    budget=st.integers(1, 200 * GIB),
    used=st.integers(0, 100 * GIB),
    scratch=st.integers(0, 8 * GIB),
    block=st.integers(1 << 10, 16 << 20),
    useful=st.integers(1, 1 << 20),
    slots=st.integers(1, 4096),
    adapter=st.none() | st.integers(1 << 20, 50 * GIB),
    kv=st.none() | st.integers(1 << 20, 100 * GIB),
    blocks=st.none() | st.integers(2, 100_000),
    host=st.integers(1 << 30, 1 << 40),
)
def test_a_plan_never_exceeds_the_budget_by_more_than_the_null_block(
    budget: int,
    used: int,
    scratch: int,
    block: int,
    useful: int,
    slots: int,
    adapter: int | None,
    kv: int | None,
    blocks: int | None,
    host: int,
) -> None:
    try:
        plan = plan_gpu(
            MemoryRequest(slots, blocks, kv, adapter, None),
            budget_bytes=budget,
            used_bytes=used,
            scratch_bytes=scratch,
            block_bytes=block,
            useful_blocks=useful,
            typical_adapter_bytes=84 << 20,
            host_bytes=host,
        )
    except ValueError as error:
        if "kv_bytes:" in str(error):
            assert kv is not None
            assert kv < block
            return
        least = used + scratch + (adapter or 0) + block
        assert least + (kv or 0) + (blocks or 0) * block > budget - budget // 4 - 3 * block, "it did fit"
        return
    assert used + scratch + plan.adapter_bytes + plan.kv_bytes <= budget + block
    assert plan.num_blocks >= 2
    assert plan.adapter_cache_bytes <= max(plan.adapter_bytes, HOST_SHARE * host)


def test_a_cpu_takes_a_gibibyte_for_keys_and_values_unless_told() -> None:
    wanted = MemoryRequest(64, None, None, None, None)
    plan = plan_cpu(wanted, block_bytes=1 << 20, useful_blocks=1 << 20)
    assert plan.num_blocks == KV_BYTES_ON_CPU // (1 << 20) + 1
    assert plan_cpu(wanted, block_bytes=1 << 20, useful_blocks=7).num_blocks == 8
    assert plan_cpu(MemoryRequest(64, 33, None, None, None), block_bytes=1, useful_blocks=7).num_blocks == 33
    assert plan.adapter_bytes == 0


# ---- devices


@pytest.mark.parametrize(
    ("kind", "quantization", "kv_dtype", "says"),
    [
        ("cpu", "int8", "auto", None),
        ("cpu", "fp8", "auto", "fp8 is not supported on a CPU; use one of none, int8"),
        ("cpu", "int4", "auto", "int4 is not supported on a CPU"),
        ("cpu", "none", "fp8", "kv_dtype fp8 needs a GPU"),
        ("cuda", "int8", "auto", "int8 is not supported on a GPU; use one of none, fp8, int4"),
        ("cuda", "fp8", "fp8", None),
        ("cuda", "int4", "auto", None),
    ],
)
def test_what_a_device_cannot_do_is_refused(
    kind: str, quantization: str, kv_dtype: str, says: str | None
) -> None:
    reason = refusal(kind, quantization, kv_dtype)
    assert (reason is None) == (says is None)
    assert reason is None or says is None or says in reason


def test_every_device_serves_a_base_as_it_is() -> None:
    assert all("none" in formats for formats in QUANTIZATIONS.values())


def test_a_device_is_taken_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device.capabilities.num_gpus", lambda: 0)
    assert (device_kind("auto"), device_kind("cpu")) == ("cpu", "cpu")
    with pytest.raises(ValueError, match="finds no GPU"):
        device_kind("cuda")
    monkeypatch.setattr("engine.device.capabilities.num_gpus", lambda: 1)
    assert (device_kind("auto"), device_kind("cpu"), device_kind("cuda")) == ("cuda", "cpu", "cuda")


def test_gpus_are_counted_without_torch() -> None:
    assert num_gpus() >= 0
    assert host_memory() > 1 << 28


def test_memory_for_less_than_one_block_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kv_bytes: 1048576 is less than one block of"):
        plan_cpu(MemoryRequest(1, None, 1 << 20, None, None), block_bytes=2 << 20, useful_blocks=9)
