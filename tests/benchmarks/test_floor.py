"""The floor of bytes, against numbers worked out by hand, and the bandwidth it is divided by."""

import pytest
import torch

from benchmarks import floor
from benchmarks.shapes import SHAPES, shape
from kernels.timing import copy_bandwidth

LLAMA = shape("llama-3.1-8b")


def test_the_linears_of_an_8b_model() -> None:
    qkv, o, gate_up, down = 6144 * 4096, 4096 * 4096, 28672 * 4096, 4096 * 14336
    weights = 32 * (qkv + o + gate_up + down)
    assert weights == 6_979_321_856
    assert floor.linear_bytes(LLAMA, "fp8") == weights
    assert floor.linear_bytes(LLAMA, "none") == 2 * weights
    # A bf16 scale for every 128 weights of half a byte: 66 bytes instead of 64.
    assert floor.linear_bytes(LLAMA, "int4") == weights / 128 * 66


def test_head_and_cache() -> None:
    assert floor.head_bytes(LLAMA) == 128256 * 4096 * 2
    # 32 layers, a key and a value, 8 heads of 128, 2 bytes.
    assert floor.kv_token_bytes(LLAMA, "auto") == 131_072
    assert floor.kv_token_bytes(LLAMA, "fp8") == 65_536


def test_an_adapter_of_rank_16_is_84_megabytes() -> None:
    assert floor.adapter_bytes(LLAMA, 16, "bf16") == 83_886_080
    # Half, and 7 modules x 16 rank rows x 4 bytes in each layer.
    assert floor.adapter_bytes(LLAMA, 16, "fp8") == 41_943_040 + 32 * 7 * 16 * 4
    assert floor.adapter_bytes(LLAMA, 64, "bf16") == 4 * 83_886_080


def test_the_mean_context_of_128_steps_after_128_tokens() -> None:
    """The first step attends to 129 tokens, its own included, the last to 256."""
    assert floor.mean_context(128, 128) == sum(range(129, 257)) / 128 == 192.5


@pytest.mark.parametrize(
    ("batch", "distinct", "milliseconds"),
    [(1, 0, 1.886), (32, 0, 2.070), (256, 0, 3.394), (32, 32, 2.699), (256, 256, 8.422)],
)
def test_floors_at_4_27_terabytes_per_second(batch: int, distinct: int, milliseconds: float) -> None:
    context = floor.mean_context(128, 128)
    adapters = [floor.adapter_bytes(LLAMA, 16, "bf16")] * distinct
    num_bytes = floor.step_bytes(LLAMA, "fp8", "auto", batch, context, adapters)
    assert floor.floor_ms(num_bytes, 4.27e12) == pytest.approx(milliseconds, abs=0.001)


def test_bandwidth_counts_what_is_read_and_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))
    monkeypatch.setattr("kernels.timing.time.perf_counter", lambda: float(next(times)))
    assert copy_bandwidth(torch.device("cpu"), num_bytes=1000, repeats=3) == 2000.0


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="tiny"):
        shape("llama-9")
    assert all(one.hidden_size == one.q_size for one in SHAPES.values())
