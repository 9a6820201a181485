"""Which sizes of step are captured, and which one a step gets."""

from itertools import pairwise

import pytest

from engine.device.graphs import Bucket, StepGraphs, row_buckets, token_buckets


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 7, 8, 9, 64, 256, 300])
def test_rows_are_padded_by_seven_at_most(max_rows: int) -> None:
    sizes = row_buckets(max_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_rows
    for rows in range(1, max_rows + 1):
        bucket = next(size for size in sizes if size >= rows)
        assert bucket - rows < 8
        assert rows > 2 or bucket == rows


@pytest.mark.parametrize("max_tokens", [16, 64, 65, 512, 2048, 8192])
def test_tokens_are_padded_by_an_eighth_or_a_step(max_tokens: int) -> None:
    sizes = token_buckets(max_tokens)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_tokens
    for smaller, larger in pairwise(sizes):
        assert larger - smaller <= max(64, smaller / 8)
    assert len(sizes) < 50


def test_a_step_gets_the_smallest_bucket_that_holds_it() -> None:
    graphs = StepGraphs(lambda bucket: pytest.fail("nothing is run"), row_buckets(16), token_buckets(200))
    assert graphs.bucket(1, True, False) == Bucket(1, True, False)
    assert graphs.bucket(9, True, True) == Bucket(16, True, True)
    assert graphs.bucket(2, False, True) == Bucket(16, False, True)
    assert graphs.bucket(33, False, True) == Bucket(64, False, True)
    assert graphs.bucket(193, False, False) == Bucket(200, False, False)
    every = graphs.buckets(with_adapters=True)
    assert len(every) == 2 * (len(row_buckets(16)) + len(token_buckets(200)))
    assert every[0].num_tokens == 200
    assert not any(bucket.with_adapters for bucket in graphs.buckets(with_adapters=False))
