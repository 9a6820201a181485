"""The pool of a device, on a CPU: whatever is loaded, evicted and moved, slots lead to their own words."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lora.artifact import GROUPS, ArtifactError, PackedAdapter
from engine.lora.device_pool import DevicePool
from engine.lora.ranges import rounded
from engine.lora.values import to_bf16
from tests.engine.lora.adapters import CONFIG, assert_empty, assert_holds, packed
from tests.support.examples import examples

LINEARS = [name for names in GROUPS.values() for name in names]
ROOM = 1 << 20


def make(num_slots: int = 4, num_bytes: int = ROOM, host_bytes: int = ROOM, **settings: int) -> DevicePool:
    return DevicePool(CONFIG, num_slots, num_bytes, host_bytes, "cpu", **settings)


def load(pool: DevicePool, slot: int, adapter: PackedAdapter) -> None:
    pool.load(slot, pool.adopt(adapter))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
def test_the_table_leads_to_the_words_that_were_packed(dtype):
    pool = make()
    adapters = {1: packed(dtype=dtype, q_proj=4, v_proj=2, down_proj=3), 3: packed(dtype=dtype, gate_proj=5)}
    for slot, adapter in adapters.items():
        load(pool, slot, adapter)
    for slot, adapter in adapters.items():
        assert_holds(pool, slot, adapter)
    assert_empty(pool, 0)
    pool.unload(1)
    assert_empty(pool, 1)
    assert_holds(pool, 3, adapters[3])
    pool.unload(3)
    assert pool.num_bytes_used == 0
    pool.host_cache.check_integrity()


def test_fp32_is_kept_as_bf16():
    pool = make()
    adapter = packed(q_proj=4, up_proj=3)
    load(pool, 0, adapter)
    assert_holds(pool, 0, to_bf16(adapter))
    assert pool.num_bytes_used == pool.size_of(adapter.manifest)
    assert pool.size_of(adapter.manifest) == pool.size_of(to_bf16(adapter).manifest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
def test_an_artifact_is_read_once_and_loaded_often(tmp_path, dtype):
    pool = make()
    adapter = packed(dtype=dtype, q_proj=4, down_proj=2)
    path = tmp_path / "a.rsa"
    adapter.write(path)
    assert pool.cached(adapter.digest) is None
    pool.load(0, pool.read(path, adapter.digest))
    path.unlink()
    pool.unload(0)
    image = pool.cached(adapter.digest)
    assert image is not None
    pool.load(2, image)
    assert_holds(pool, 2, to_bf16(adapter) if dtype == "float32" else adapter)
    pool.host_cache.check_integrity()


def damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-70] + bytes([data[-70] ^ 1]) + data[-69:])


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (packed(num_layers=3, q_proj=2), "layers: the adapter has 3"),
        (packed(q_proj=9), "rank: is 9, this engine serves up to 8"),
        (packed(dtype="bfloat16", q_proj=2), "digest: content"),
    ],
)
def test_what_cannot_be_served_is_refused_and_takes_no_memory(tmp_path, adapter, reason):
    pool = make(max_rank=8)
    path = tmp_path / "a.rsa"
    adapter.write(path)
    if "digest" in reason:
        damaged(path)
    with pytest.raises(ArtifactError, match=reason):
        pool.read(path, adapter.digest)
    pool.host_cache.check_integrity()
    assert pool.cached(adapter.digest) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
def test_values_that_are_not_finite_are_refused_on_entry(dtype):
    pool = make()
    adapter = packed(dtype=dtype, q_proj=2)
    adapter.b(1, "qkv", "q_proj")[1, 3] = {"float32": np.nan, "bfloat16": 0x7F80, "float8_e4m3": 0x7F}[dtype]
    with pytest.raises(ArtifactError, match="slab: has values that are not finite"):
        pool.adopt(adapter)
    pool.host_cache.check_integrity()


def test_no_room_is_said_so_and_leaves_the_slot_empty():
    adapter = packed(dtype="bfloat16", q_proj=4)
    pool = make(num_bytes=make().size_of(adapter.manifest) + 256)
    load(pool, 0, adapter)
    with pytest.raises(MemoryError, match="256 of"):
        load(pool, 1, packed(dtype="bfloat16", seed=1, q_proj=4))
    assert_empty(pool, 1)
    assert_holds(pool, 0, adapter)
    pool.check_integrity()
    pool.host_cache.check_integrity()


def test_an_upload_that_fails_leaves_the_slot_empty_and_the_bytes_free(monkeypatch):
    pool = make()

    def refuse(source: torch.Tensor, target: torch.Tensor) -> None:
        raise RuntimeError("device says no")

    with monkeypatch.context() as patched:
        patched.setattr(pool._transfers, "upload", refuse)
        with pytest.raises(RuntimeError, match="device says no"):
            load(pool, 1, packed(dtype="bfloat16", q_proj=4))
    assert_empty(pool, 1)
    assert pool.num_bytes_used == 0
    pool.check_integrity()
    pool.host_cache.check_integrity()
    load(pool, 1, packed(dtype="bfloat16", q_proj=4))


def test_free_bytes_in_pieces_are_brought_together():
    sizes = {3: 4, 5: 2}
    small = packed(dtype="bfloat16", q_proj=4)
    unit = make().size_of(small.manifest)
    large = packed(dtype="bfloat16", seed=9, q_proj=4, k_proj=4, v_proj=3)
    assert unit < make().size_of(large.manifest) <= 2 * unit
    pool = make(num_slots=6, num_bytes=5 * unit)
    adapters = {slot: packed(dtype="bfloat16", seed=slot, q_proj=4) for slot in range(5)}
    for slot, adapter in adapters.items():
        load(pool, slot, adapter)
    for slot in (1, 3):
        pool.unload(slot)
        del adapters[slot]
    load(pool, 5, large)
    assert pool.num_moves == 1, f"one adapter lies between the holes, {sizes}"
    for slot, adapter in adapters.items():
        assert_holds(pool, slot, adapter)
    assert_holds(pool, 5, large)
    pool.check_integrity()


def test_sizes_below_zero_are_refused():
    for sizes in ((-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        with pytest.raises(ValueError, match="negative"):
            DevicePool(CONFIG, *sizes, "cpu")


@settings(max_examples=examples(25), deadline=None)
@given(moved_bytes=st.sampled_from([1, 10_000, 1 << 30]), random=st.integers(0, 2**32).map(Random))
def test_whatever_is_loaded_and_evicted_slots_hold_their_own(moved_bytes: int, random: Random) -> None:
    """Any adapter whose bytes are free is loaded, after moves of the others if need be."""
    pool = make(num_slots=8, num_bytes=30_000, host_bytes=120_000)
    pool.moved_bytes = moved_bytes
    held: dict[int, PackedAdapter] = {}
    for seed in range(25):
        slot = random.randrange(8)
        if random.random() < 0.5:
            pool.unload(slot)
            held.pop(slot, None)
        elif slot not in held:
            ranks = {name: random.randint(1, 8) for name in random.sample(LINEARS, random.randint(1, 7))}
            dtype = random.choice(["bfloat16", "float8_e4m3"])
            adapter = packed(dtype=dtype, seed=seed, **ranks)
            if pool.size_of(adapter.manifest) <= pool.capacity - pool.num_bytes_used:
                load(pool, slot, adapter)
                held[slot] = adapter
            else:
                with pytest.raises(MemoryError):
                    load(pool, slot, adapter)
        pool.check_integrity()
        assert pool.num_bytes_used == sum(pool.size_of(adapter.manifest) for adapter in held.values())
        for index in range(8):
            if index in held:
                assert_holds(pool, index, held[index])
            else:
                assert_empty(pool, index)
    pool.host_cache.check_integrity()


def test_sizes_are_whole_ranges():
    adapter = packed(q_proj=1)
    assert make().size_of(adapter.manifest) == rounded(make().size_of(adapter.manifest))
