"""The kernel of rotation and KV write under the interpreter, against the plain statement."""

import pytest
import torch

from kernels.delta_cases import split
from kernels.rope_kv import rope_kv
from kernels.rope_kv.cases import CASES, Case, naive_rope_kv


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_the_plain_statement(case: Case) -> None:
    qkv, table, options = case.inputs()
    where, cache, expected_cache = case.where(), case.cache(), case.cache()
    expected = naive_rope_kv(case, qkv, table, expected_cache, where, options)
    got = rope_kv(qkv, table, cache, where, case.num_heads, **options)
    present = where.positions_T >= 0
    torch.testing.assert_close(got[present].double(), expected[present], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("case", CASES[-2:], ids=str)
def test_reads_parts(case: Case) -> None:
    qkv, table, options = case.inputs()
    where, cache, expected_cache = case.where(), case.cache(), case.cache()
    expected = naive_rope_kv(case, qkv, table, expected_cache, where, options)
    parts = split(qkv, 2)
    qkv.fill_(float("nan"))
    got = rope_kv(qkv, table, cache, where, case.num_heads, **options, parts_PTN=parts)
    present = where.positions_T >= 0
    torch.testing.assert_close(got[present].double(), expected[present], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_fp8_cache_holds_clamped_keys_and_values() -> None:
    """At position 0 nothing turns; the interpreter rounds to e4m3 wrongly, so there is nothing to round."""
    case = Case((0, -1, 0), 2, 2, 32)
    qkv, table, options = case.inputs()
    qkv.copy_(qkv.to(torch.float8_e4m3fn))
    qkv[0, 128:130] = torch.tensor([1000.0, -1e30])
    where = case.where()
    cache, expected = case.cache(torch.float8_e4m3fn), case.cache(torch.float8_e4m3fn)
    naive_rope_kv(case, qkv, table, expected, where, options)
    rope_kv(qkv, table, cache, where, 2, **options)
    assert cache[where.tables_RB[2, 0], 1, 0, 0, :2].tolist() == [448.0, -448.0]
    assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))


def test_reads_rows_that_are_strided_and_leaves_what_lies_between() -> None:
    case = CASES[1]
    qkv, table, options = case.inputs()
    wide = torch.full((len(qkv), 2 * case.width), -7.0)
    wide[:, : case.width] = qkv
    cache, where = case.cache(), case.where()
    got = rope_kv(wide[:, : case.width], table, cache, where, case.num_heads, **options)
    alone = rope_kv(qkv, table, case.cache(), where, case.num_heads, **options)
    assert torch.equal(got, alone)
    assert (wide[:, case.width :] == -7.0).all()
