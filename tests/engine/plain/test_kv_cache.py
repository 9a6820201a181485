"""Blocks: handed out once, found again by content, given away in the right order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kv_cache import NULL_BLOCK, BlockPool, BlockTable, prefix_root
from tests.support.examples import examples


def computed(
    pool: BlockPool, token_ids: list[int], tenant: str = "acme", digest: str | None = None
) -> BlockTable:
    """A table whose tokens have all been computed."""
    table = BlockTable(pool, prefix_root(tenant, digest))
    table.open(table.match(token_ids), len(token_ids))
    table.register_computed(token_ids, len(token_ids))
    return table


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5)
    assert pool.num_blocks == pool.num_free == 4
    assert sorted(pool.take() for _ in range(4)) == [1, 2, 3, 4]
    assert NULL_BLOCK not in pool.held_ids()
    pool.check_integrity()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 16), (0, 16), (4, 0)])
def test_a_pool_without_blocks_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        BlockPool(num_blocks, block_size)


def test_released_contents_are_found_again_by_the_same_prefix() -> None:
    pool = BlockPool(20, 4)
    token_ids = list(range(10))
    first = computed(pool, token_ids)
    block_ids = first.block_ids
    first.close()
    assert pool.num_held == 0
    again = BlockTable(pool, prefix_root("acme", None))
    assert again.match(token_ids) == block_ids[:2]
    other = BlockTable(pool, prefix_root("acme", None))
    assert other.match([*token_ids[:4], 99, *token_ids[5:]]) == block_ids[:1]


def test_the_last_token_is_always_left_to_compute() -> None:
    pool = BlockPool(20, 4)
    token_ids = list(range(8))
    computed(pool, token_ids)
    twin = BlockTable(pool, prefix_root("acme", None))
    assert len(twin.match(token_ids)) == 1


@pytest.mark.parametrize(("tenant", "digest"), [("bolt", None), ("acme", "d1"), ("bolt", "d1")])
def test_another_tenant_or_adapter_finds_nothing(tenant: str, digest: str | None) -> None:
    pool = BlockPool(20, 4)
    token_ids = list(range(12))
    computed(pool, token_ids)
    assert BlockTable(pool, prefix_root(tenant, digest)).match(token_ids) == []
    assert len(BlockTable(pool, prefix_root("acme", None)).match(token_ids)) == 2


def test_tenant_and_digest_cannot_be_shifted_into_each_other() -> None:
    assert prefix_root("ab", "c") != prefix_root("a", "bc")
    assert prefix_root("a", None) != prefix_root("", "a")


def test_a_shared_block_is_held_until_its_last_holder_goes() -> None:
    pool = BlockPool(20, 4)
    first = computed(pool, list(range(9)))
    second = computed(pool, list(range(9)))
    assert first.block_ids[:2] == second.block_ids[:2]
    assert first.block_ids[2] != second.block_ids[2]
    first.close()
    assert set(second.block_ids) == pool.held_ids()
    second.close()
    assert pool.num_held == 0
    pool.check_integrity()


def test_blocks_without_contents_go_first_then_the_longest_unused_tail_first() -> None:
    pool = BlockPool(8, 4)
    old = computed(pool, list(range(8)))
    new = computed(pool, list(range(50, 61)))
    old_ids, new_ids = old.block_ids, new.block_ids
    old.close()
    new.close()
    nameless = new_ids[2]
    taken = [pool.take() for _ in range(7)]
    assert set(taken[:3]) == {nameless} | (set(range(1, 8)) - set(old_ids) - set(new_ids))
    assert taken[3:] == [old_ids[1], old_ids[0], new_ids[1], new_ids[0]]


def test_a_given_away_block_is_not_found_any_more() -> None:
    pool = BlockPool(3, 4)
    table = computed(pool, list(range(8)))
    table.close()
    pool.take()
    assert len(BlockTable(pool, prefix_root("acme", None)).match(list(range(9)))) == 1
    pool.take()
    assert BlockTable(pool, prefix_root("acme", None)).match(list(range(9))) == []
    pool.check_integrity()


def test_forgotten_contents_are_not_found_even_where_a_twin_has_them() -> None:
    pool = BlockPool(20, 4)
    tables = [BlockTable(pool, prefix_root("acme", None)) for _ in range(2)]
    for table in tables:  # both computed at once: neither finds the other
        table.open([], 8)
    for table in tables:
        table.register_computed(list(range(8)), 8)
    tables[1].invalidate()
    assert BlockTable(pool, prefix_root("acme", None)).match(list(range(9))) == []
    for table in tables:
        table.close()
    pool.check_integrity()


def test_releasing_more_often_than_held_is_caught() -> None:
    pool = BlockPool(4)
    block_id = pool.take()
    pool.release([block_id])
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([block_id])


@settings(max_examples=examples(60), deadline=None)
@given(num_blocks=st.integers(4, 30), random=st.integers(0, 2**32).map(Random))
def test_blocks_are_conserved_and_never_shared_for_writing(num_blocks: int, random: Random) -> None:
    pool = BlockPool(num_blocks, 4)
    tables: list[tuple[BlockTable, list[int], int]] = []
    for _ in range(60):
        if tables and random.random() < 0.4:
            table, _, _ = tables.pop(random.randrange(len(tables)))
            table.close()
        else:
            tenant = random.choice(["acme", "bolt"])
            token_ids = [random.choice([1, 2]) for _ in range(random.randint(1, 20))]
            table = BlockTable(pool, prefix_root(tenant, None))
            matched = table.match(token_ids)
            num_needed = -(-len(token_ids) // 4) - len(matched)
            if pool.num_free_besides(matched) < num_needed:
                continue
            table.open(matched, len(token_ids))
            assert len(table.block_ids) == len(set(table.block_ids))
            assert table.capacity >= len(token_ids)
            table.register_computed(token_ids, len(token_ids))
            tables.append((table, token_ids, len(matched)))
        pool.check_integrity()
        held = {block_id for table, _, _ in tables for block_id in table.block_ids}
        assert held == pool.held_ids()
        for table, token_ids, _ in tables:
            # A block not full yet will be written to: nobody else may hold it.
            for block_id in table.block_ids[len(token_ids) // 4 :]:
                assert sum(block_id in other.block_ids for other, _, _ in tables) == 1
    for table, _, _ in tables:
        table.close()
    assert pool.num_free == pool.num_blocks
    pool.check_integrity()
