"""Paged attention against one token and one head at a time; bits that do not depend on the batch."""

import numpy as np
import pytest
import torch

from kernels.attention import AttentionMetadata, AttentionPlan, paged_attention
from kernels.attention.cases import CASES, Case, naive_attention
from kernels.attention.plan import MAX_GROUP_QUERIES, MAX_TILE_BLOCKS, MAX_WASTED_BLOCKS
from kernels.workspace import Workspace


def run(case: Case, q: torch.Tensor, cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
    plan = AttentionPlan.build(metadata, case.num_heads, case.num_kv_heads, Workspace())
    out = torch.full_like(q, float("nan"))
    paged_attention(q, cache, plan, case.head_dim**-0.5, out)
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_naive_statement(case: Case) -> None:
    q, cache = case.inputs()
    metadata = case.metadata()
    expected = naive_attention(q, cache, metadata, case.head_dim**-0.5)
    torch.testing.assert_close(run(case, q, cache, metadata).double(), expected, rtol=1e-5, atol=1e-5)


def subset(metadata: AttentionMetadata, seqs: list[int]) -> AttentionMetadata:
    return AttentionMetadata.build(
        metadata.query_lens[seqs], metadata.total_lens[seqs], metadata.block_tables[seqs], metadata.block_size
    )


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(case: Case) -> None:
    q, cache = case.inputs()
    metadata = case.metadata()
    together = run(case, q, cache, metadata)
    for seq in range(metadata.num_seqs):
        rows = slice(metadata.query_starts[seq], metadata.query_starts[seq] + metadata.query_lens[seq])
        assert torch.equal(run(case, q[rows], cache, subset(metadata, [seq])), together[rows])


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_chunks_of_any_size_give_the_same_bits(num_kv_heads: int) -> None:
    total = 150
    case = Case(((total, total),), 4, num_kv_heads, 16)
    q, cache = case.inputs()
    tables = case.metadata().block_tables
    whole = run(case, q, cache, case.metadata())
    for chunk in (1, 2, 3, 16, 50, 149):
        for first in range(0, total, chunk):
            last = min(first + chunk, total)
            metadata = AttentionMetadata.build([last - first], [last], tables, 16)
            assert torch.equal(run(case, q[first:last], cache, metadata), whole[first:last]), (chunk, first)


def test_nan_in_one_sequence_stays_there() -> None:
    case = Case(((1, 40), (1, 33), (20, 30), (1, 16)), 4, 2, 16)
    q, cache = case.inputs()
    metadata = case.metadata()
    clean = run(case, q, cache, metadata)
    q[1] = float("inf")
    cache[metadata.block_tables[1, 0]] = float("nan")
    spoiled = run(case, q, cache, metadata)
    assert spoiled[1].isnan().all()
    others = [row for row in range(len(q)) if row != 1]
    assert torch.equal(spoiled[others], clean[others])


def test_decode_tiles_cover_every_row_and_bound_padding() -> None:
    rng = np.random.default_rng(0)
    total_lens = np.sort(rng.integers(1, 4000, 200))[rng.permutation(200)]
    needed = -(-total_lens // 16)
    tables = np.zeros((200, needed.max()), dtype=np.int32)
    metadata = AttentionMetadata.build(np.ones(200, dtype=int), total_lens, tables, 16)
    plan = AttentionPlan.build(metadata, 4, 2, Workspace())
    covered: list[int] = []
    for tile in plan.tiles:
        rows = list(range(*tile.rows.indices(200))) if isinstance(tile.rows, slice) else tile.rows.tolist()
        covered += rows
        wasted = tile.num_seqs * tile.num_keys // 16 - needed[rows].sum()
        assert wasted <= MAX_WASTED_BLOCKS
        assert tile.num_seqs == 1 or tile.num_seqs * tile.num_keys // 16 <= MAX_TILE_BLOCKS
    assert sorted(covered) == list(range(200))


def test_prefill_chunks_of_one_shape_share_tiles_with_the_same_bits() -> None:
    shapes = ((20, 36), (5, 9), (20, 36), (1, 30), (300, 310), (20, 36), (5, 9), (20, 40), (300, 310))
    case = Case(shapes, 4, 2, 16)
    q, cache = case.inputs()
    metadata = case.metadata()
    plan = AttentionPlan.build(metadata, 4, 2, Workspace())
    shared = sorted((tile.num_seqs, tile.num_queries) for tile in plan.tiles)
    # 300 queries are cut at 128, and two such chunks are too many for one tile.
    assert shared == [(1, 1), (1, 20), *[(1, 44)] * 2, *[(1, 128)] * 4, (2, 5), (3, 20)]
    rows = [
        row
        for tile in plan.tiles
        for row in (range(len(q))[tile.rows] if isinstance(tile.rows, slice) else tile.rows.tolist())
    ]
    assert sorted(rows) == list(range(len(q)))
    together = run(case, q, cache, metadata)
    expected = naive_attention(q, cache, metadata, case.head_dim**-0.5)
    torch.testing.assert_close(together.double(), expected, rtol=1e-5, atol=1e-5)
    for seq in range(metadata.num_seqs):
        own = slice(metadata.query_starts[seq], metadata.query_starts[seq] + metadata.query_lens[seq])
        assert torch.equal(run(case, q[own], cache, subset(metadata, [seq])), together[own])


def test_many_prefill_chunks_of_one_shape_are_bounded_per_tile() -> None:
    metadata = AttentionMetadata.build([100] * 11, [100] * 11, np.zeros((11, 7), dtype=np.int32), 16)
    plan = AttentionPlan.build(metadata, 4, 2, Workspace())
    assert [tile.num_seqs for tile in plan.tiles] == [MAX_GROUP_QUERIES // 100, MAX_GROUP_QUERIES // 100, 1]


def test_metadata_derives_positions_slots_and_started_blocks() -> None:
    metadata = AttentionMetadata.build([1, 3], [17, 3], [[4, 9], [2, 0]], 16)
    assert metadata.positions.tolist() == [16, 0, 1, 2]
    assert metadata.slot_mapping.tolist() == [9 * 16, 2 * 16, 2 * 16 + 1, 2 * 16 + 2]
    assert metadata.started_blocks.tolist() == [9, 2]
    assert metadata.query_starts.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("query_lens", "total_lens", "tables", "message"),
    [
        ([1], [1, 2], [[1]], "same sequences"),
        ([], [], [], "at least one"),
        ([0], [1], [[1]], "query_len"),
        ([2], [1], [[1]], "query_len"),
        ([1], [17], [[1]], "cannot hold"),
    ],
)
def test_metadata_refuses_nonsense(query_lens: list, total_lens: list, tables: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionMetadata.build(query_lens, total_lens, tables, 16)


def test_refuses_what_does_not_fit() -> None:
    case = CASES[1]
    q, cache = case.inputs()
    plan = AttentionPlan.build(case.metadata(), case.num_heads, case.num_kv_heads, Workspace())
    with pytest.raises(ValueError, match="plan 3"):
        paged_attention(q[:2], cache, plan, 1.0, torch.empty_like(q[:2]))
    with pytest.raises(ValueError, match="cache"):
        paged_attention(q[:, :3], cache, plan, 1.0, torch.empty_like(q[:, :3]))
    with pytest.raises(ValueError, match="another cache"):
        paged_attention(q, cache.view(-1, 2, 4, 8, 32), plan, 1.0, torch.empty_like(q))
