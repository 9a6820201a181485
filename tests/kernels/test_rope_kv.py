"""Rotation and KV write in torch: against the plain statement, and the bits of the ops it is made of."""

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.rope import rope
from kernels.rope_kv import CacheRows, rope_kv
from kernels.rope_kv.cases import CASES, Case, naive_rope_kv

WHOLE = [case for case in CASES if min(case.positions) >= 0]


@pytest.mark.parametrize("case", WHOLE, ids=str)
def test_as_the_plain_statement(case: Case) -> None:
    qkv, table, options = case.inputs()
    where, cache, expected_cache = case.where(), case.cache(), case.cache()
    expected = naive_rope_kv(case, qkv, table, expected_cache, where, options)
    rotary = table[where.positions_T.long()]
    got = rope_kv(qkv, rotary, cache, case.cache_rows(), case.num_heads, **options)
    assert got.data_ptr() == qkv.data_ptr()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_those_of_rope_and_kv_write(dtype: torch.dtype) -> None:
    case = Case((5, 30, 2, 17), 8, 4, 32)
    qkv, table, _ = case.inputs(dtype)
    rotary, rows = table[case.where().positions_T.long()], case.cache_rows()
    parts, cache = qkv.clone().unflatten(1, (-1, 32)), case.cache(dtype)
    rope(parts[:, :12], rotary)
    kv_write(parts[:, 8:].unflatten(1, (2, -1)), rows.rows_T2H, cache)
    fused_cache = case.cache(dtype)
    assert torch.equal(rope_kv(qkv, rotary, fused_cache, rows, 8), parts[:, :8])
    assert torch.equal(fused_cache.nan_to_num(), cache.nan_to_num())


def test_refuses_what_does_not_fit() -> None:
    case = Case((5, 30), 4, 2, 32)
    qkv, table, _ = case.inputs()
    where, rows, cache = case.where(), case.cache_rows(), case.cache()
    rotary = table[where.positions_T.long()]
    with pytest.raises(ValueError, match="cache"):
        rope_kv(qkv[:, 32:], rotary, cache, rows, 4)
    with pytest.raises(ValueError, match="norms"):
        rope_kv(qkv, rotary, cache, rows, 4, q_norm_D=torch.ones(32))
    with pytest.raises(ValueError, match="rotary"):
        rope_kv(qkv, rotary[:1], cache, rows, 4)
    with pytest.raises(ValueError, match="rows"):
        rope_kv(qkv, rotary, cache, CacheRows(rows.rows_T2H[:1]), 4)
    with pytest.raises(ValueError, match="positions"):
        rope_kv(qkv[:1], table, cache, where, 4)
    with pytest.raises(ValueError, match="rotary"):
        rope_kv(qkv, table.double(), cache, where, 4)
