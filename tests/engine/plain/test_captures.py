"""Graphs that are captured behind requests: one at a time, and never beside a step."""

from __future__ import annotations

import pytest

from engine import core
from tests.engine.plain.harness import Engine, adapter, alone, submission


class Captures:
    """Some sizes of step that are still to be captured."""

    def __init__(self, num_postponed: int) -> None:
        self.num_postponed = num_postponed
        self.engine: Engine

    def capture_next(self) -> None:
        assert not self.engine.runner.in_flight, "a step was under way"
        self.num_postponed -= 1


def engine_with(num_postponed: int, **options: int) -> tuple[Engine, Captures]:
    captures = Captures(num_postponed)
    engine = Engine(captures=captures, **options)
    captures.engine = engine
    return engine, captures


def test_an_engine_without_requests_captures_with_every_step() -> None:
    engine, captures = engine_with(3)
    for left in (2, 1, 0):
        assert engine.core.has_captures
        assert not engine.core.has_work
        assert not engine.step()
        assert captures.num_postponed == left
    assert not engine.core.has_captures
    engine.check_idle()


@pytest.mark.parametrize("depth", [0, 1])
def test_when_one_is_due_it_waits_for_the_step_in_flight(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CAPTURE_EVERY_S", -1.0)
    engine, captures = engine_with(5, depth=depth)
    submits = [submission(name, [1, 2, 3], 20) for name in ("a", "b")]
    for submit in submits:
        engine.submit(submit)
    engine.run()
    engine.check_idle()
    assert captures.num_postponed == 0
    for submit in submits:
        assert engine.tokens(submit.request_id) == alone(submit)[0]
    assert engine.runner.most_in_flight == depth + 1, "steps overlap once all are captured"


def test_requests_come_before_captures_that_are_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CAPTURE_EVERY_S", 1e9)
    engine, captures = engine_with(5, depth=1)
    engine.submit(submission("a", [1, 2, 3], 20))
    steps = engine.run()
    assert captures.num_postponed == 5
    assert steps < 25
    assert engine.runner.most_in_flight == 2


def test_a_request_whose_adapter_was_loaded_does_not_wait_for_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "CAPTURE_EVERY_S", 1e9)
    engine, captures = engine_with(5, auto_load=False)
    engine.submit(submission("a", [1], 2, adapter=adapter("a")))
    engine.step()
    engine.step()
    assert captures.num_postponed == 4, "meanwhile there is nothing else to do"
    engine.finish_load()
    engine.run()
    assert captures.num_postponed == 4
