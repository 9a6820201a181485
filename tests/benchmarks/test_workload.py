"""Draws are what they say they are, and the same for the same seed."""

import math

import numpy as np
import pytest

from benchmarks.workload import Lengths, arrival_times, draw_arrivals, zipf_shares


def test_arrivals_come_at_the_rate_asked_for() -> None:
    times = arrival_times(np.random.default_rng(0), 50.0, 20_000)
    gaps = np.diff(times)
    assert times[-1] == pytest.approx(400, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # as of an exponential distribution
    assert not arrival_times(np.random.default_rng(0), math.inf, 5).any()


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        arrival_times(np.random.default_rng(0), 0.0, 5)


def test_lengths_have_the_mean_asked_for_and_stay_in_range() -> None:
    drawn = Lengths(161.31, 1.1, 1, 1 << 30).draw(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(161.31, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(1.1, rel=0.02)
    cut = Lengths(161.31, 1.1, 16, 256).draw(np.random.default_rng(0), 1000)
    assert cut.min() == 16
    assert cut.max() == 256


def test_popularity_falls_as_one_over_the_place() -> None:
    shares = zipf_shares(1000)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[9] == pytest.approx(10)
    asked = [arrival.adapter for arrival in draw_arrivals(0, 10.0, 20_000, 1000)]
    assert asked.count(0) / len(asked) == pytest.approx(shares[0], rel=0.1)
    with pytest.raises(ValueError, match="at least one"):
        zipf_shares(0)


def test_rates_and_adapters_do_not_change_the_work() -> None:
    slow, fast = draw_arrivals(3, 5.0, 100, 8), draw_arrivals(3, 50.0, 100, 1000)
    assert [(a.prompt_len, a.output_len) for a in slow] == [(a.prompt_len, a.output_len) for a in fast]
    assert [a.at for a in slow] == pytest.approx([10 * a.at for a in fast])
    assert draw_arrivals(4, 5.0, 100, 8) != slow
