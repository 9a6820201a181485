"""What a router knows of one replica between its reports."""

from __future__ import annotations

import pytest

from routing.views import (
    MAX_ASSUMED_ADAPTERS,
    OCCUPANCY_SECONDS,
    STEP_TOKENS,
    DecayingMean,
    ReplicaReport,
    ReplicaView,
)


def view(**report: object) -> ReplicaView:
    made = ReplicaView("engine-0", 0.0)
    made.take(ReplicaReport(**report), 0.0)  # type: ignore[arg-type]
    return made


def test_requests_count_from_when_they_are_routed_until_they_end() -> None:
    made = view(rows_total=10, rows_taken=2)
    assert made.occupancy == pytest.approx(0.2)
    for _ in range(5):
        made.routed(1, None, 1.0)
    assert made.occupancy == pytest.approx(0.7)
    assert made.cost("default", 1.0) == pytest.approx(0.7 * OCCUPANCY_SECONDS)
    assert made.expected_wait("default", 1.0) == 0.0, "there is room in the batch"
    made.take(ReplicaReport(rows_total=10, rows_taken=7), 1.1)
    assert made.occupancy == pytest.approx(0.7), "once"
    made.ended()
    assert made.occupancy == pytest.approx(0.6)
    made.take(ReplicaReport(rows_total=10, rows_taken=1), 1.6)
    for _ in range(4):
        made.ended()
    assert made.occupancy == 0.0


def test_prompt_tokens_are_a_backlog_that_is_worked_off() -> None:
    made = view(rows_total=10**9, prompt_rate=1000.0)
    made.routed(STEP_TOKENS, None, 1.0)
    assert made.expected_wait("default", 1.0) == pytest.approx(0.0, abs=1e-6), "one step computes them"
    made.routed(3000, None, 1.0)
    assert made.expected_wait("default", 1.0) == pytest.approx(3.0)
    assert made.expected_wait("default", 3.0) == pytest.approx(1.0)
    made.take(ReplicaReport(rows_total=10**9, prompt_rate=1000.0, predicted_wait={"default": 0.5}), 3.0)
    assert made.expected_wait("default", 3.0) == pytest.approx(1.0), "not both"
    assert made.expected_wait("default", 9.0) == pytest.approx(0.5)


def test_the_wait_is_the_classes_own() -> None:
    made = view(predicted_wait={"priority": 1.0, "default": 4.0})
    assert made.expected_wait("priority", 0.0) == 1.0
    assert made.expected_wait("default", 0.0) == 4.0


def test_an_adapter_is_held_once_it_was_routed_there_until_reports_deny_it() -> None:
    made = view(resident={"a"})
    assert made.holds("a")
    assert not made.holds("b")
    made.routed(1, "b", 10.0)
    assert made.holds("b")
    made.take(ReplicaReport(resident={"a"}), 10.5)
    assert made.holds("b"), "it may be about to load it"
    made.take(ReplicaReport(resident={"a"}), 11.5)
    assert not made.holds("b")


def test_a_replica_that_reports_no_adapters_is_assumed_to_hold_what_it_was_sent_last() -> None:
    made = view(resident=None)
    for number in range(MAX_ASSUMED_ADAPTERS + 10):
        made.routed(1, str(number), float(number))
    made.take(ReplicaReport(resident=None), 9999.0)
    assert made.holds(str(MAX_ASSUMED_ADAPTERS + 9))
    assert not made.holds("3")


def latencies(*values: float) -> DecayingMean:
    made = DecayingMean(20.0)
    for value in values:
        made.add(value, 0.0)
    return made


def test_a_slow_replica_loses_what_its_first_tokens_take_longer() -> None:
    made = view()
    everyone = latencies(*[0.001] * 20, *[0.004] * 10)
    assert made.seconds_lost(everyone, 488, 0.0) == 0.0, "nothing is known of it"
    for _ in range(10):
        made.latency.add(0.004, 0.0)
    assert made.seconds_lost(everyone, 488, 0.0) == pytest.approx(3.0)
    assert 0.0 < made.seconds_lost(everyone, 488, 40.0) < 1.0, "old latencies count less"
    assert made.seconds_lost(everyone, 488, 300.0) == 0.0


def test_a_trial_that_is_answered_as_fast_as_elsewhere_halves_what_is_known() -> None:
    made = view()
    everyone = latencies(*[0.001] * 20)
    for _ in range(16):
        made.answered(0.004, everyone, 0.0, tried=False)
    made.answered(0.004, everyone, 20.0, tried=True)
    assert made.latency.weight == pytest.approx(9.0), "it is still slow: only time has passed"
    assert everyone.weight == pytest.approx(19.0)
    made.answered(0.001, everyone, 20.0, tried=True)
    assert made.latency.weight == pytest.approx(5.5)
    assert everyone.weight == pytest.approx(15.5)
    assert everyone.total - made.latency.total == pytest.approx(0.01), "the others' stay"
    made.answered(0.001, everyone, 20.0, tried=False)
    assert made.latency.weight == pytest.approx(6.5)


def test_a_few_slow_answers_count_little() -> None:
    made = view()
    made.latency.add(0.004, 0.0)
    assert made.seconds_lost(latencies(*[0.001] * 20, 0.004), 488, 0.0) < 0.5


def test_a_little_slower_is_not_slow() -> None:
    made = view()
    for _ in range(20):
        made.latency.add(1.4, 0.0)
    assert made.seconds_lost(latencies(*[1.0] * 20, *[1.4] * 20), 0, 0.0) == 0.0
