"""What each rank has: its parts cover the model once, and fit together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters.packing import pack
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.pool import AdapterPool
from engine.lora.shards import shard_adapter, shard_manifest
from engine.lora.values import to_fp32
from engine.model.config import GROUPS, ModelConfig, load_config
from engine.model.quantized_tensors import Codes
from engine.model.shards import (
    ROW_PARALLEL,
    Shard,
    check_divides,
    has_bias_here,
    sharded_config,
    vocabulary_part,
    weight_part,
)
from engine.model.weights import base_digest, open_checkpoint
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft
from tests.engine.runner.bases import write_adapters, write_base

MODULES = [name for names in GROUPS.values() for name in names]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return write_base(tmp_path_factory.mktemp("base"), num_attention_heads=8, num_key_value_heads=2)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("module", MODULES)
def test_the_parts_of_a_weight_cover_it(config: ModelConfig, module: str, size: int) -> None:
    seen = np.zeros(config.linear_shapes[module], int)
    for rank in range(size):
        part = weight_part(config, module, Shard(rank, size))
        seen[part] += 1
        assert seen[part].shape == sharded_config(config, size).linear_shapes[module]
    copies = max(1, size // config.num_kv_heads) if module in ("k_proj", "v_proj") else 1
    assert (seen == copies).all()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_rank_has_the_keys_of_its_queries(config: ModelConfig, size: int) -> None:
    group = config.num_heads // config.num_kv_heads
    for rank in range(size):
        queries, keys = (weight_part(config, name, Shard(rank, size))[0] for name in ("q_proj", "k_proj"))
        heads = range(queries.start // config.head_dim, queries.stop // config.head_dim)
        needed = {head // group for head in heads}
        assert needed == set(range(keys.start // config.head_dim, keys.stop // config.head_dim))


@given(st.integers(1, 300), st.integers(1, 8))
def test_the_parts_of_a_vocabulary_cover_it(vocab_size: int, size: int) -> None:
    parts = [vocabulary_part(vocab_size, Shard(rank, size)) for rank in range(size)]
    assert parts[0][0] == 0
    assert parts[-1][1] == vocab_size
    assert all(end == first for (_, end), (first, _) in pairwise(parts))


def test_one_rank_adds_the_bias_of_a_sum() -> None:
    for module in MODULES:
        adding = sum(has_bias_here(module, Shard(rank, 4)) for rank in range(4))
        assert adding == (1 if module in ROW_PARALLEL else 4)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("num_attention_heads = 6", {"num_heads": 6, "num_kv_heads": 2}),
        ("num_key_value_heads = 6", {"num_heads": 12, "num_kv_heads": 6}),
        ("intermediate_size = 98", {"intermediate_size": 98}),
    ],
)
def test_what_cannot_be_divided_is_named(config: ModelConfig, field: str, changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel: 4 ranks cannot share {field}"):
        check_divides(replace(config, **changes), 4)


def test_a_vocabulary_that_does_not_divide_ends_with_zeros(tmp_path: Path) -> None:
    config = write_base(tmp_path)  # 211 tokens
    parts = []
    for rank in range(4):
        with open_checkpoint(tmp_path, config, torch.float32, torch.device("cpu"), Shard(rank, 4)) as opened:
            parts.append(opened.vocabulary("lm_head.weight"))
    with open_checkpoint(tmp_path, config, torch.float32, torch.device("cpu")) as opened:
        whole = opened.tensor("lm_head.weight")
    assert [len(part) for part in parts] == [53] * 4
    assert torch.equal(torch.cat(parts)[:211], whole)
    assert not torch.cat(parts)[211:].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
def test_an_adapters_parts_add_up_to_it(tmp_path: Path, dtype: str) -> None:
    """Each rank has its inputs of A and its outputs of B, of every module."""
    config = write_base(tmp_path / "base", num_attention_heads=4, num_key_value_heads=4)
    tensors = lora_tensors(config, list(LINEARS), 5, None, seed=1, std=0.25)
    folder = write_peft(tmp_path / "peft", tensors, r=5, lora_alpha=8, target_modules=list(LINEARS))
    ref = pack(folder, config, base_digest(tmp_path / "base"), tmp_path / "packed", dtype)
    packed = PackedAdapter.read(artifact_path(tmp_path / "packed", ref.digest), ref.digest)
    size = 4
    parts = [shard_adapter(packed, config, Shard(rank, size)) for rank in range(size)]
    wide, shares = _wide(packed), [_wide(part) for part in parts]
    for layer, group, entry in packed.groups():
        for name in entry.modules:
            a, b = _matrices(wide, layer, group, name)
            ours = [_matrices(share, layer, group, name) for share in shares]
            np.testing.assert_array_equal(np.concatenate([part for part, _ in ours], 1), a)
            np.testing.assert_array_equal(np.concatenate([part for _, part in ours], 1), b)
    for rank, part in enumerate(parts):
        assert part.manifest == shard_manifest(packed.manifest, config, Shard(rank, size))
        assert size * _num_weights(part) == _num_weights(packed)


def test_a_pool_counts_its_own_part(tmp_path: Path) -> None:
    config = write_base(tmp_path / "base")
    ref = write_adapters(tmp_path / "base", tmp_path / "adapters")["wide"].ref
    packed = PackedAdapter.read(artifact_path(tmp_path / "adapters" / "packed", ref.digest), ref.digest)
    whole, half = AdapterPool(config, 1), AdapterPool(config, 1, shard=Shard(1, 2))
    for pool in (whole, half):
        pool.load(0, packed)
        assert pool.slot_bytes[0] == pool.size_of(packed.manifest)
    assert half.slot_bytes[0] < whole.slot_bytes[0]


def test_codes_are_cut_between_groups_of_one_scale() -> None:
    codes = Codes(
        torch.arange(4 * 256, dtype=torch.int64).view(4, 256), torch.arange(8.0).view(4, 2), None, None
    )
    part = codes.part("down_proj", slice(None), slice(128, 256))
    assert torch.equal(part.codes_NK, codes.codes_NK[:, 128:])
    assert part.scale_NG.tolist() == [[1.0], [3.0], [5.0], [7.0]]
    rows = codes.part("up_proj", slice(2, 4), slice(None))
    assert rows.scale_NG.tolist() == [[4.0, 5.0], [6.0, 7.0]]
    with pytest.raises(ValueError, match="down_proj would be cut at inputs 64 and 128"):
        codes.part("down_proj", slice(None), slice(64, 128))
    ordered = replace(codes, order_K=torch.arange(256))
    with pytest.raises(ValueError, match="down_proj stores its inputs in another order"):
        ordered.part("down_proj", slice(None), slice(0, 128))


def _wide(packed: PackedAdapter) -> PackedAdapter:
    if packed.manifest.dtype == "float8_e4m3":
        return to_fp32(packed)
    if packed.manifest.dtype == "float32":
        return packed
    slab = (packed.slab.astype(np.uint32) << 16).view(np.float32)
    return PackedAdapter(packed.manifest, slab)


def _num_weights(packed: PackedAdapter) -> int:
    return sum(
        packed.a(layer, group).size + sum(packed.b(layer, group, name).size for name in entry.modules)
        for layer, group, entry in packed.groups()
    )


def _matrices(packed: PackedAdapter, layer: int, group: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A [rank, inputs] and B [rank, outputs] of a module."""
    begin = 0
    for other, module in packed.manifest.layers[layer][group].modules.items():
        if other == name:
            return packed.a(layer, group)[begin : begin + module.rank], packed.b(layer, group, name)
        begin += module.rank
    raise AssertionError(name)


def test_load_config_is_of_the_whole(tmp_path: Path) -> None:
    write_base(tmp_path)
    assert load_config(tmp_path).num_heads == 2 * sharded_config(load_config(tmp_path), 2).num_heads
