"""Zipf's law with its tail in groups, against the law itself and against a cache that is simulated."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from benchmarks.workload import zipf_shares
from engine.planner.popularity import Popularity


@pytest.mark.parametrize("count", [1, 7, 1000, 1001, 50_000])
@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_distinct_adapters_of_a_batch(count: int, exponent: float) -> None:
    shares = zipf_shares(count, exponent)
    for rows in (1, 32, 256):
        exact = float((1 - (1 - shares) ** rows).sum())
        assert Popularity(count, exponent).distinct(rows)[0] == pytest.approx(exact, rel=1e-3)


def test_no_adapters() -> None:
    none = Popularity(0, 1.0)
    assert none.distinct([1, 256]).tolist() == [0, 0]
    assert none.miss_share(256) == none.largest_share == 0


def test_the_most_popular_adapter() -> None:
    assert Popularity(1_000_000, 1.0).largest_share == pytest.approx(zipf_shares(1_000_000)[0], rel=1e-3)


def test_misses_of_a_simulated_cache() -> None:
    count, capacity = 2000, 256
    draws = np.random.default_rng(0).choice(count, 60_000, p=zipf_shares(count)).tolist()
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for place, adapter in enumerate(draws):
        if adapter in cache:
            cache.move_to_end(adapter)
            continue
        misses += place >= 20_000
        cache[adapter] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    assert Popularity(count, 1.0).miss_share(capacity) == pytest.approx(misses / 40_000, rel=0.05)


def test_a_cache_for_all_misses_nothing() -> None:
    assert Popularity(256, 1.0).miss_share(256) == 0
    assert Popularity(256, 1.0).miss_share(0) == 1
