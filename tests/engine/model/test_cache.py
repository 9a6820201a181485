"""The paged cache's types: what they cost, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig

from engine.model.cache import KVCache
from engine.model.config import parse_config
from tests.engine.model.checkpoints import SHAPE

CONFIG = parse_config(json.loads(LlamaConfig(**SHAPE).to_json_string()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_block_costs_what_is_allocated_for_it(dtype: torch.dtype) -> None:
    cache = KVCache(CONFIG, 7, 16, dtype=dtype)
    assert cache.layers.dtype == dtype
    assert cache.layers.nbytes == 7 * KVCache.block_bytes(CONFIG, 16, dtype)
    assert not cache.layers.float().any()


def test_refuses_bytes_that_are_no_numbers_of_a_cache() -> None:
    with pytest.raises(ValueError, match="e4m3"):
        KVCache(CONFIG, 7, 16, dtype=torch.int8)
    with pytest.raises(ValueError, match="e4m3"):
        KVCache(CONFIG, 7, 16, dtype=torch.float8_e5m2)


def test_refuses_a_cache_of_the_null_block_alone() -> None:
    with pytest.raises(ValueError, match="null block"):
        KVCache(CONFIG, 1)
