"""When an engine that is away is expected back."""

from __future__ import annotations

from engine.transport.start_estimate import ASSUMED_START, RESTART_PAUSE, StartEstimate


def test_the_last_start_tells_how_long_the_next_takes() -> None:
    estimate = StartEstimate(now=100.0)
    assert estimate.ready_in(100.0) == ASSUMED_START + RESTART_PAUSE, "nothing is known yet"
    estimate.served(start_seconds=16.0)
    estimate.lost(200.0)
    assert estimate.ready_in(200.0) == 16.0 + RESTART_PAUSE
    assert estimate.ready_in(210.0) == 6.0 + RESTART_PAUSE
    assert estimate.ready_in(300.0) == 1.0, "overdue: clients go on asking, though not at once"


def test_an_engine_that_serves_takes_a_whole_start_to_be_replaced() -> None:
    estimate = StartEstimate(now=0.0)
    estimate.served(start_seconds=16.0)
    assert estimate.ready_in(1000.0) == 16.0 + RESTART_PAUSE


def test_an_older_engine_does_not_say_how_long_it_took() -> None:
    estimate = StartEstimate(now=0.0)
    estimate.served(start_seconds=0.0)
    assert estimate.ready_in(5.0) == ASSUMED_START + RESTART_PAUSE
