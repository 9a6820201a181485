"""Rotation and KV write on the device against the plain statement; one graph for steps of any placement."""

import pytest
import torch

from kernels.rope_kv import rope_kv
from kernels.rope_kv.cases import CASES, Case, naive_rope_kv

pytestmark = pytest.mark.gpu
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn

WIDE = [
    Case((0, 191, -1, 130_000, 7), 32, 8, 128, normed=True, scaled=True),
    Case(tuple(range(64)), 32, 8, 128, scaled=True),
    Case((100, 3), 8, 4, 32),
    Case((0, 191, -1, 130_000, 7), 32, 8, 128, normed=True, scaled=True, adapted=True),
    Case(tuple(range(64)), 32, 8, 128, scaled=True, adapted=True),
]


@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
@pytest.mark.parametrize("case", CASES + WIDE, ids=str)
def test_as_the_plain_statement(case: Case, cache_dtype: torch.dtype, device: torch.device) -> None:
    qkv, table, options = case.inputs(BF16)
    expected_cache = case.cache(cache_dtype)
    expected = naive_rope_kv(case, qkv, table, expected_cache, case.where(), options)
    there, table_there, options_there = case.inputs(BF16, device)
    cache = case.cache(cache_dtype, device)
    got = rope_kv(there, table_there, cache, case.where(device), case.num_heads, **options_there)
    present = case.where().positions_T >= 0
    assert got.data_ptr() == there.data_ptr()
    torch.testing.assert_close(got.cpu()[present].double(), expected[present], rtol=2**-7, atol=1e-5)
    assert torch.equal(
        got.cpu()[~present], qkv[~present, : case.num_heads * case.head_dim].view_as(got[~present])
    )
    ulp = 2**-7 if cache_dtype == BF16 else 2**-3
    torch.testing.assert_close(
        cache.float().cpu(), expected_cache.float(), rtol=ulp, atol=2**-9, equal_nan=True
    )


def test_magnitudes_beyond_e4m3_are_clamped_and_nan_stays(device: torch.device) -> None:
    case = Case((4,), 1, 1, 32)
    qkv, table, options = case.inputs(BF16, device)
    qkv[0, 64:68] = torch.tensor([1000.0, -1e30, float("inf"), float("nan")])
    where, cache = case.where(device), case.cache(FP8, device)
    rope_kv(qkv, table, cache, where, 1, **options)
    written = cache[int(where.tables_RB[0, 0]), 1, 0, 4, :4].float()
    assert written[:3].tolist() == [448.0, -448.0, 448.0]
    assert written[3].isnan()


def test_one_graph_serves_any_placement(device: torch.device) -> None:
    case = Case((5, 200, 17, 64), 8, 2, 128, normed=True, adapted=True)
    original, table, options = case.inputs(BF16, device)
    qkv, where, cache = original.clone(), case.where(device), case.cache(BF16, device)
    rope_kv(qkv, table, cache, where, 8, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rope_kv(qkv, table, cache, where, 8, **options)
    for positions in ((1, 2, 3, 4), (200, -1, 16, -1), (-1, -1, -1, 0)):
        where.positions_T.copy_(torch.tensor(positions, dtype=torch.int32))
        qkv.copy_(original)
        cache.fill_(float("nan"))
        graph.replay()
        expected_cache = case.cache(BF16)
        here = case.where()
        here.positions_T.copy_(torch.tensor(positions, dtype=torch.int32))
        inputs = case.inputs(BF16)
        naive_rope_kv(case, inputs[0], inputs[1], expected_cache, here, inputs[2])
        torch.testing.assert_close(
            cache.cpu().double(), expected_cache.double(), rtol=2**-7, atol=1e-5, equal_nan=True
        )


def test_a_row_has_the_same_bits_in_any_company(device: torch.device) -> None:
    case = WIDE[1]
    qkv, table, options = case.inputs(BF16, device)
    where = case.where(device)
    together = rope_kv(qkv.clone(), table, case.cache(BF16, device), where, 32, **options)
    alone = qkv.clone()
    where.positions_T[:40] = -1
    where.positions_T[41:] = -1
    got = rope_kv(alone, table, case.cache(BF16, device), where, 32, **options)
    assert torch.equal(got[40], together[40])


def test_a_token_of_the_base_alone_has_the_bits_of_a_step_without_adapters(device: torch.device) -> None:
    case = Case(tuple(range(64)), 32, 8, 128, normed=True, scaled=True, adapted=True)
    qkv, table, options = case.inputs(BF16, device)
    where = case.where(device)
    alone = options["delta"].has_adapter_T == 0
    results = []
    for delta in (options["delta"], None):
        cache = case.cache(BF16, device)
        q = rope_kv(qkv.clone(), table, cache, where, 32, **(options | {"delta": delta}))
        blocks = where.tables_RB[where.rows_T.long()].amax(1).long()
        results.append((q[alone], cache[blocks[alone]].view(torch.int16)))
    assert all(torch.equal(*both) for both in zip(*results, strict=True))
