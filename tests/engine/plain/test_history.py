"""What is kept of the last minutes' steps."""

from __future__ import annotations

import random

import pytest

from engine.history import NUM_SECONDS, Levels, StepHistory, Totals


class Site:
    """A history, with the clock and the counters that it reads."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.totals = Totals(0, 0, 0, 0, 0, 0, 0)
        self.levels = Levels(0, [0, 0, 0])
        self.history = StepHistory(lambda: self.totals, lambda: self.levels, lambda: self.now)

    def step(self, seconds: float = 0.01, prefill: int = 0, decode: int = 1, drawn: int = 0) -> None:
        self.history.planned([0, prefill, 0], [0, decode, 0])
        self.history.ending()
        self.totals = self.totals._replace(completion_tokens=self.totals.completion_tokens + drawn)
        self.history.ended(seconds)


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_second_is_told_once_it_is_over(site: Site) -> None:
    site.step(0.02, prefill=100, decode=3)
    site.step(0.04, prefill=0, decode=4)
    site.totals = Totals(7, 100, 16, 1, 2, 3, 4)
    site.levels = Levels(12, [0, 5, 0])
    assert site.history.seconds() == []
    site.now += 1
    (second,) = site.history.seconds()
    assert (second.at, second.steps) == (1000, 2)
    assert second.step_seconds == pytest.approx(0.06)
    assert second.prefill_tokens == [0, 100, 0]
    assert second.decode_rows == [0, 7, 0]
    assert (second.completion_tokens, second.prompt_tokens, second.cached_tokens) == (7, 100, 16)
    assert (second.preemptions, second.shed) == (1, 2)
    assert (second.adapter_loads, second.adapter_evictions) == (3, 4)
    assert (second.blocks_used, second.waiting) == (12, [0, 5, 0])


def test_counters_are_told_as_what_they_rose_by(site: Site) -> None:
    for drawn in (10, 30):
        site.step(drawn=drawn)
        site.now += 1
    assert [second.completion_tokens for second in site.history.seconds()] == [10, 30]


def test_an_idle_second_takes_no_room_and_a_refusal_in_one_is_told(site: Site) -> None:
    site.step()
    site.now += 5
    assert [second.at for second in site.history.seconds()] == [1000]
    site.totals = site.totals._replace(shed=1)
    site.now += 1
    assert [(second.at, second.shed) for second in site.history.seconds()] == [(1000, 0), (1005, 1)]


def test_what_is_old_is_forgotten_with_its_times(site: Site) -> None:
    for _ in range(NUM_SECONDS + 50):
        site.step(1.0)
        site.now += 1
    kept = site.history.seconds()
    assert len(kept) == NUM_SECONDS
    assert kept[-1].at == int(site.now) - 1
    site.now += NUM_SECONDS
    site.step(0.001)
    site.now += 1
    (last,) = site.history.seconds()
    assert last.p99 == pytest.approx(0.001, rel=0.03)
    assert site.history.percentiles(0.5, 0.99) == pytest.approx([0.001, 0.001], rel=0.03)


def test_percentiles_are_within_three_per_cent(site: Site) -> None:
    draw = random.Random(4)
    times = [draw.lognormvariate(-4, 1.0) for _ in range(2000)]
    for number, seconds in enumerate(times):
        site.now = 1000 + number // 500
        site.step(seconds)
    site.now += 1
    site.history.seconds()
    ordered = sorted(times)
    exact = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99)]
    assert site.history.percentiles(0.5, 0.99) == pytest.approx(exact, rel=0.03)


def test_a_step_that_took_no_time_is_counted(site: Site) -> None:
    site.step(0.0)
    site.now += 1
    (second,) = site.history.seconds()
    assert second.steps == 1
    assert second.p99 < 1e-9
