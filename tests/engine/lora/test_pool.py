"""Slots hold what was packed, at true ranks, and nothing of what was there before."""

import numpy as np
import pytest
import torch

from engine.lora.artifact import GROUPS, ArtifactError
from engine.lora.pool import AdapterPool
from engine.lora.values import to_fp32
from tests.adapters.peft_files import tiny_config
from tests.engine.lora.adapters import CONFIG, packed


def exposed(pool: AdapterPool, slot: int) -> dict[tuple[int, str], object]:
    found = {}
    for layer in range(CONFIG.num_layers):
        for group in GROUPS:
            views = pool.group(layer, group)[slot]
            if views is not None:
                found[layer, group] = views
    return found


def test_views_are_the_weights_that_were_packed():
    pool = AdapterPool(CONFIG, num_slots=3)
    adapter = packed(q_proj=4, v_proj=2, down_proj=3)
    pool.load(1, adapter)
    assert exposed(pool, 0) == exposed(pool, 2) == {}
    assert set(exposed(pool, 1)) == {(layer, group) for layer in (0, 1) for group in ("qkv", "down")}
    views = pool.group(1, "qkv")[1]
    assert views.ranks == (4, 0, 2)
    assert views.scales == (1.0, 0.0, 0.5)
    assert views.b[1] is None
    np.testing.assert_array_equal(views.a.numpy(), adapter.a(1, "qkv"))
    np.testing.assert_array_equal(views.b[0].numpy(), adapter.b(1, "qkv", "q_proj"))
    np.testing.assert_array_equal(views.b[2].numpy(), adapter.b(1, "qkv", "v_proj"))
    assert views.a.is_contiguous()
    assert views.b[0].is_contiguous()


def test_one_slab_holds_all_of_an_adapter():
    pool = AdapterPool(CONFIG, num_slots=1)
    pool.load(0, packed(q_proj=4, up_proj=2, o_proj=1))
    storages = {
        tensor.untyped_storage().data_ptr()
        for views in exposed(pool, 0).values()
        for tensor in (views.a, *views.b)
        if tensor is not None
    }
    assert len(storages) == 1


def test_what_a_slot_takes_is_known_while_it_is_filled():
    pool = AdapterPool(CONFIG, num_slots=2)
    adapter = packed(q_proj=4, up_proj=2)
    pool.load(1, adapter)
    assert pool.slot_bytes == [0, pool.size_of(adapter.manifest)]
    pool.unload(1)
    assert pool.slot_bytes == [0, 0]


def test_fp8_is_widened_by_its_scales():
    pool = AdapterPool(CONFIG, num_slots=1)
    adapter = packed(dtype="float8_e4m3", q_proj=4, k_proj=2)
    pool.load(0, adapter)
    views = pool.group(1, "qkv")[0]
    wide = to_fp32(adapter)
    np.testing.assert_array_equal(views.a.numpy(), wide.a(1, "qkv"))
    np.testing.assert_array_equal(views.b[1].numpy(), wide.b(1, "qkv", "k_proj"))
    assert views.scales == (1.0, 0.5, 0.0)


def test_fp8_values_that_are_not_finite_are_refused():
    pool = AdapterPool(CONFIG, num_slots=1)
    bad = packed(dtype="float8_e4m3", v_proj=2)
    bad.b(1, "qkv", "v_proj")[1, 3] = 0x7F
    with pytest.raises(ArtifactError, match="slab: has values that are not finite"):
        pool.load(0, bad)
    assert exposed(pool, 0) == {}


def test_bfloat16_is_widened_exactly():
    pool = AdapterPool(CONFIG, num_slots=1)
    adapter = packed(dtype="bfloat16", q_proj=4)
    pool.load(0, adapter)
    views = pool.group(0, "qkv")[0]
    assert views.a.dtype is torch.float32
    expected = torch.from_numpy(adapter.a(0, "qkv").copy()).view(torch.bfloat16).float()
    assert torch.equal(views.a, expected)


def test_a_new_adapter_leaves_nothing_of_the_old_one():
    pool = AdapterPool(CONFIG, num_slots=2)
    pool.load(0, packed(**{name: 8 for names in GROUPS.values() for name in names}))
    pool.load(1, packed(seed=5, o_proj=2))
    neighbour = pool.group(0, "o")[1]
    pool.load(0, packed(seed=1, k_proj=1))
    assert set(exposed(pool, 0)) == {(0, "qkv"), (1, "qkv")}
    assert pool.group(0, "qkv")[0].ranks == (0, 1, 0)
    assert pool.group(0, "o")[1] is neighbour
    pool.unload(0)
    assert exposed(pool, 0) == {}


def test_versions_change_with_the_weights_of_their_slot_only():
    pool = AdapterPool(CONFIG, num_slots=2)
    seen = [list(pool.versions)]
    pool.load(0, packed(q_proj=1))
    seen.append(list(pool.versions))
    pool.load(0, packed(q_proj=1))
    seen.append(list(pool.versions))
    pool.unload(0)
    seen.append(list(pool.versions))
    assert len({versions[0] for versions in seen}) == 4
    assert len({versions[1] for versions in seen}) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_that_are_not_finite_are_refused_and_the_slot_stays_empty(value, dtype):
    pool = AdapterPool(CONFIG, num_slots=1)
    pool.load(0, packed(q_proj=2))
    bad = packed(dtype=dtype, v_proj=2)
    word = np.float32(value) if dtype == "float32" else np.float32(value).view(np.uint32) >> 16
    bad.b(1, "qkv", "v_proj")[1, 3] = word
    with pytest.raises(ArtifactError, match="slab: has values that are not finite"):
        pool.load(0, bad)
    assert exposed(pool, 0) == {}


def test_an_adapter_of_another_base_is_refused_by_field():
    other = AdapterPool(tiny_config(intermediate_size=64), num_slots=1)
    with pytest.raises(ArtifactError) as caught:
        other.load(0, packed(q_proj=2, up_proj=2))
    assert caught.value.field == "layers[0].gate_up.up_proj"
    other.load(0, packed(q_proj=2))
    with pytest.raises(ArtifactError, match="layers: the adapter has 3, the base has 2"):
        other.load(0, packed(q_proj=2, num_layers=3))


def test_a_negative_number_of_slots_is_refused():
    with pytest.raises(ValueError, match="num_slots"):
        AdapterPool(CONFIG, num_slots=-1)
