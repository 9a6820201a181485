"""Which sizes of step are captured, and which one a step gets."""

from itertools import pairwise
from unittest.mock import Mock

import pytest
import torch

from engine.device.graphs import Bucket, StepGraphs, first_buckets, row_buckets, token_buckets
from kernels.attention.device_plan import ahead_keys


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
    graphs = StepGraphs(
        lambda bucket: pytest.fail("nothing is run"),
        row_buckets(16),
        token_buckets(200),
        ahead_keys=lambda num_tokens: {1: 100, 2: 50}.get(num_tokens, 0),
    )
    assert graphs.bucket(1, True, False, 101) == Bucket(1, True, False, has_long=True)
    assert graphs.bucket(1, True, False, 100) == Bucket(1, True, False, has_long=False)
    assert graphs.bucket(2, True, False, 51) == Bucket(2, True, False, has_long=True)
    assert graphs.bucket(3, True, False, 1) == Bucket(4, True, False, has_long=True)
    assert graphs.bucket(9, True, True, 1) == Bucket(16, True, True)
    assert graphs.bucket(2, False, True, 2) == Bucket(16, False, True)
    assert graphs.bucket(33, False, True, 33) == Bucket(64, False, True)
    assert graphs.bucket(193, False, False, 193) == Bucket(200, False, False)
    every = graphs.buckets(with_adapters=True)
    assert len(every) == len(set(every)) == 2 * (len(row_buckets(16)) + len(token_buckets(200)) + 2)
    assert every[0].num_tokens == 200
    assert not any(bucket.with_adapters for bucket in graphs.buckets(with_adapters=False))


class _Uncaptured(StepGraphs):
    """Notes what is captured."""

    def _capture(self, bucket: Bucket) -> None:
        self._graphs[bucket] = Mock(torch.cuda.CUDAGraph), torch.empty(0)

    @property
    def captured(self) -> set[Bucket]:
        return set(self._graphs)


@pytest.mark.parametrize("with_adapters", [False, True])
@pytest.mark.parametrize(("max_rows", "max_tokens"), [(1, 16), (16, 200), (256, 2048)])
def test_the_first_buckets_hold_every_step(max_rows: int, max_tokens: int, with_adapters: bool) -> None:
    rows, tokens = row_buckets(max_rows), token_buckets(max_tokens)
    graphs = _Uncaptured(lambda bucket: pytest.fail("nothing is run"), rows, tokens, ahead_keys=ahead_keys)
    buckets = graphs.buckets(with_adapters)
    first = first_buckets(buckets)
    assert len(first) <= 10
    graphs.capture(first)
    others = [bucket for bucket in buckets if bucket not in first]
    graphs.postpone(others)
    assert graphs.captured == set(first)
    assert graphs.num_postponed == len(others)
    for done in range(len(others) + 1):
        for wanted in buckets:
            longest = ahead_keys(wanted.num_tokens) + wanted.has_long
            given = graphs.bucket(wanted.num_tokens, wanted.decode_only, wanted.with_adapters, longest)
            assert given in graphs.captured
            assert given.decode_only == wanted.decode_only
            assert given.num_tokens >= wanted.num_tokens
            assert given.with_adapters >= wanted.with_adapters
            assert given.has_long or given == wanted, "sequences of one size are too long for another"
            assert given == wanted or wanted in others[done:]
        if done < len(others):
            graphs.capture_next()
    assert graphs.num_postponed == 0


def test_a_bucket_that_no_other_holds_is_not_postponed() -> None:
    graphs = _Uncaptured(lambda bucket: pytest.fail("nothing is run"), [1, 8], [16])
    graphs.capture([Bucket(16, False, True), Bucket(1, True, True)])
    graphs.postpone([Bucket(8, True, True)])
    assert Bucket(8, True, True) in graphs.captured
    assert graphs.num_postponed == 0
