"""Rotation and KV write in torch: against the plain statement, and against rotation of complex numbers."""

import pytest
import torch

from kernels.delta_cases import adapter_delta
from kernels.rope_kv import CacheRows, rope_kv
from kernels.rope_kv.cases import CASES, Case, naive_rope_kv
from kernels.rope_kv.reference import rope_reference

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


@pytest.mark.parametrize(("num_tokens", "num_heads", "head_dim"), [(1, 3, 16), (32, 12, 32), (64, 40, 128)])
def test_rotates_each_pair_by_its_angle(num_tokens: int, num_heads: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    x = torch.randn(num_tokens, num_heads, head_dim, generator=generator)
    angles = torch.rand(num_tokens, head_dim // 2, generator=generator) * 6.28
    first, second = x.double().chunk(2, -1)
    turned = (
        torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles).to(torch.cdouble)[:, None]
    )
    planes = torch.stack(
        (torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)), 1
    )
    rope_reference(x, planes)
    torch.testing.assert_close(x.double(), torch.cat((turned.real, turned.imag), -1), rtol=1e-5, atol=1e-6)


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
    with pytest.raises(ValueError, match="delta"):
        rope_kv(qkv, rotary, cache, rows, 4, delta=adapter_delta(2, 128))
    with pytest.raises(ValueError, match="positions"):
        rope_kv(qkv[:1], table, cache, where, 4)
    with pytest.raises(ValueError, match="rotary"):
        rope_kv(qkv, table.double(), cache, where, 4)
