"""How steps are cut for the device: every key and query once, within what a bucket's grid covers."""

import numpy as np
import pytest
import torch

from kernels.attention.cases import Case, DeviceBatch
from kernels.attention.device_plan import (
    AHEAD_TOKENS,
    DECODED_KEYS,
    DECODED_TOKENS,
    MAX_SPLITS,
    PREFILL_ROWS,
    SPLIT_KEYS,
    SPLIT_STEP,
    AttentionGeometry,
    DevicePlan,
    ahead_keys,
    decodes_chunks,
    max_splits,
    split_lengths,
)
from kernels.step_inputs import StepInputs
from tests.support.speed import calls_of_nothing, times_as_long

HEADS = Case(((1, 1),), 32, 8, 128)
TILE_TOKENS = PREFILL_ROWS // 4


def batch_of(max_rows: int, max_tokens: int, max_blocks: int) -> DeviceBatch:
    return DeviceBatch(HEADS, max_rows, max_tokens, max_blocks, "cpu")


def test_splits_cover_any_length_and_depend_on_it_alone() -> None:
    lengths = np.arange(1, 140_000)
    splits = split_lengths(lengths)
    counts = -(-lengths // splits)
    assert counts.max() == MAX_SPLITS
    assert splits.min() == SPLIT_KEYS
    assert (splits % SPLIT_STEP == 0).all()
    assert (np.diff(splits) >= 0).all()
    for length in (1, SPLIT_KEYS, SPLIT_KEYS + 1, 5000, 139_999):
        assert counts[:length].max() <= max_splits(length)


@pytest.mark.parametrize("seed", range(20))
def test_every_token_and_every_key_is_covered_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_seqs = int(rng.integers(1, 40))
    query_lens = np.where(rng.random(num_seqs) < rng.random(), 1, rng.integers(1, 200, num_seqs))
    total_lens = query_lens + np.where(rng.random(num_seqs) < 0.8, rng.integers(0, 900, num_seqs), 30_000)
    num_tokens = int(query_lens.sum()) + int(rng.integers(0, 5))
    rows = rng.permutation(64)[:num_seqs]
    batch = batch_of(64, 8192, 2048)
    decode_only = bool((query_lens == 1).all()) and num_tokens <= 64
    step = batch.plan.bucket(num_tokens, decode_only)
    positions = batch.fill(rows, query_lens, total_lens, num_tokens)

    expected_rows = np.repeat(rows, query_lens)
    expected = np.concatenate([np.arange(t - q, t) for q, t in zip(query_lens, total_lens, strict=True)])
    used = int(query_lens.sum())
    assert step.positions_T[:used].tolist() == expected.tolist()
    assert positions.tolist() == expected.tolist()
    assert step.rows_T[:used].tolist() == expected_rows.tolist()
    assert (step.positions_T[used:] == -1).all()
    assert (step.rows_T[used:] == 64).all()

    num_items, num_tiles, num_ahead = step.counts_3.tolist()
    assert num_ahead == 0
    seen = np.zeros(num_tokens, dtype=np.int64)
    splits_of: dict[int, int] = {}
    lengths = []
    for place, first_key, last_key, share in step.items_I4[:num_items].tolist():
        token, row, ordinal, split, splits = (
            place & 0xFFFF,
            place >> 16,
            share & 0xFFFF,
            share >> 16 & 0xFF,
            share >> 24,
        )
        assert split == splits_of.get(ordinal, 0) < splits
        splits_of[ordinal] = split + 1
        assert expected_rows[token] == row
        assert first_key == seen[token] < last_key <= expected[token] + 1
        seen[token] = last_key
        lengths.append(int(split_lengths(expected[token] + 1)))
        assert splits == -(-(expected[token] + 1) // lengths[-1])
    assert lengths == sorted(lengths, reverse=True)
    assert num_items <= min(num_tokens, 64) * max_splits(batch.plan.max_len)
    assert num_tiles <= step.prefill_tiles
    last_keys = []
    for token, count, position, row in step.tiles_I4[:num_tiles].tolist():
        assert 1 <= count <= TILE_TOKENS
        assert (expected_rows[token : token + count] == row).all()
        assert expected[token : token + count].tolist() == list(range(position, position + count))
        seen[token : token + count] += expected[token : token + count] + 1
        last_keys.append(position + count)
    assert last_keys == sorted(last_keys, reverse=True)
    assert seen[:used].tolist() == (expected + 1).tolist()
    assert not seen[used:].any()


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5])
def test_short_sequences_of_small_buckets_are_read_ahead(num_tokens: int) -> None:
    batch = DeviceBatch(HEADS, 8, 64, 512, "cpu", reads_ahead=True)
    step, limit = batch.plan.bucket(num_tokens, decode_only=True), ahead_keys(num_tokens)
    assert bool(limit) == (num_tokens <= AHEAD_TOKENS)
    lengths = np.array([max(1, limit), limit + 1, 1, 5000, limit // 2 + 1][:num_tokens])
    batch.fill(np.arange(num_tokens), np.ones(num_tokens, np.int64), lengths, num_tokens)
    num_long, num_tiles, num_ahead = step.counts_3.tolist()
    covered = np.zeros(num_tokens, np.int64)
    for items, count, is_short in ((step.items_I4, num_long, False), (step.ahead_items_I4, num_ahead, True)):
        for place, first, last, _ in items[:count].tolist():
            assert first == covered[place & 0xFFFF] < last
            covered[place & 0xFFFF] = last
            assert (lengths[place & 0xFFFF] <= limit) == is_short
            assert not is_short or last - first <= SPLIT_KEYS
    assert covered.tolist() == lengths.tolist()
    assert num_tiles == 0
    assert num_ahead <= step.ahead_items
    if limit:
        worst = np.full(num_tokens, limit)
        batch.fill(np.arange(num_tokens), np.ones(num_tokens, np.int64), worst, num_tokens)
        assert step.counts_3.tolist() == [0, 0, step.ahead_items]
        assert batch.plan.bucket(num_tokens, decode_only=True, has_long=False).decode_programs == 0
    else:
        with pytest.raises(AssertionError, match="reads no keys ahead"):
            batch.plan.bucket(num_tokens, decode_only=True, has_long=False)


@pytest.mark.parametrize("seed", range(20))
def test_tokens_of_chunks_are_decoded_in_small_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    query_lens = rng.integers(1, 6, int(rng.integers(1, 9)))
    query_lens[0] = 2
    num_tokens = int(query_lens.sum()) if seed % 2 else 4
    if num_tokens == 4:
        query_lens = np.array([2, 1])
    total_lens = query_lens + rng.integers(0, 900, len(query_lens))
    batch = DeviceBatch(HEADS, 64, 64, 512, "cpu", reads_ahead=True)
    rows = rng.permutation(64)[: len(query_lens)]
    positions = batch.fill(rows, query_lens, total_lens, num_tokens, decode_only=True)
    expected = np.concatenate([np.arange(t - q, t) for q, t in zip(query_lens, total_lens, strict=True)])
    assert positions.tolist() == expected.tolist()

    step = batch.plan.bucket(num_tokens, decode_only=True)
    num_items, num_tiles, num_ahead = step.counts_3.tolist()
    assert num_tiles == 0
    owners, seen = np.repeat(rows, query_lens), np.zeros(len(expected), np.int64)
    alone = np.repeat(query_lens == 1, query_lens)
    for items, count, is_ahead in ((step.items_I4, num_items, False), (step.ahead_items_I4, num_ahead, True)):
        for place, first, last, _ in items[:count].tolist():
            token = place & 0xFFFF
            assert place >> 16 == owners[token]
            assert first == seen[token] < last
            assert is_ahead == (alone[token] and expected[token] < ahead_keys(num_tokens))
            seen[token] = last
    assert seen.tolist() == (expected + 1).tolist()


def test_chunks_are_decoded_while_they_are_short_and_see_few_keys() -> None:
    def decodes(*seqs: tuple[int, int]) -> bool:
        return decodes_chunks(*(np.array(lens) for lens in zip(*seqs, strict=True)))

    assert decodes((5, 200), (1, 100_000))
    assert decodes((DECODED_TOKENS, DECODED_TOKENS))
    assert not decodes((DECODED_TOKENS, DECODED_TOKENS), (1, 9))
    assert decodes((8, DECODED_KEYS // 8))
    assert not decodes((8, DECODED_KEYS // 8), (2, 2))


def test_a_step_of_nobody_is_all_filling() -> None:
    batch = batch_of(8, 64, 4)
    step, nobody = batch.plan.bucket(64, decode_only=False), np.zeros(0, np.int64)
    batch.fill(np.arange(8), np.full(8, 8), np.full(8, 20), 64)
    batch.fill(nobody, nobody, nobody, 64)
    assert step.counts_3.tolist() == [0, 0, 0]
    assert (step.positions_T == -1).all()
    assert (step.rows_T == 8).all()


def test_grids_depend_on_the_bucket_and_hold_its_worst_step() -> None:
    batch = batch_of(8, 512, 4)
    worst = batch.plan.bucket(512, decode_only=False)
    batch.fill(np.arange(8), np.full(8, TILE_TOKENS + 1), np.full(8, TILE_TOKENS + 1), 512)
    assert worst.counts_3[1] == 16 <= worst.prefill_tiles
    few = batch.plan.bucket(2, decode_only=False)
    batch.fill(np.array([0]), np.array([2]), np.array([2]), 2)
    assert few.counts_3[1] == 1 <= few.prefill_tiles
    assert batch.plan.bucket(8, decode_only=True).prefill_tiles == 0


def test_a_step_is_filled_within_its_share_of_the_host_time() -> None:
    """60 us is the budget of a decode step of 256 rows where 256 calls of nothing take 10."""
    batch = batch_of(256, 2048, 8192)
    rng = np.random.default_rng(0)
    rows, ones, totals = rng.permutation(256), np.ones(256, dtype=np.int64), rng.integers(1, 4000, 256)
    fill = times_as_long(lambda: batch.plan.fill(rows, ones, totals, 256), than=calls_of_nothing(256))
    assert fill < 30


def test_refuses_what_does_not_fit() -> None:
    batch = batch_of(4, 64, 4)
    with pytest.raises(ValueError, match="bucket of 65"):
        batch.plan.bucket(65, decode_only=False)
    with pytest.raises(ValueError, match="bucket of 5"):
        batch.plan.bucket(5, decode_only=True)
    with pytest.raises(AssertionError, match="tokens for a bucket"):
        batch.plan.fill(np.array([0]), np.array([3]), np.array([3]), 2)
    with pytest.raises(AssertionError, match="in a row of 64"):
        batch.plan.fill(np.array([0]), np.array([1]), np.array([65]), 1)
    with pytest.raises(ValueError, match="cannot share"):
        DevicePlan(StepInputs("cpu"), AttentionGeometry(6, 4, 32, 16), 4, 64, 4, torch.device("cpu"))
    with pytest.raises(ValueError, match="more than an item"):
        DevicePlan(StepInputs("cpu"), AttentionGeometry(4, 4, 32, 16), 1 << 16, 64, 4, "cpu")
