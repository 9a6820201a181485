"""What is refused because it would wait too long, who leaves a full queue, and how true predictions are."""

from __future__ import annotations

from statistics import mean, median

import pytest

from engine.protocol import PriorityClass
from tests.engine.plain.harness import Engine, submission
from tests.engine.plain.traffic import Sender, Traffic

PRIORITY, DEFAULT, FLEX = PriorityClass
TARGETS = {PRIORITY: 0.5, DEFAULT: 2.0, FLEX: 10.0}


# ---- predictions


def test_where_nothing_was_measured_nothing_is_predicted() -> None:
    engine = Engine(max_rows=1, max_waiting=100, ttft_targets={DEFAULT: 0.001})
    for number in range(50):
        assert engine.submit(submission(f"r{number}", [1], 2)) is None
    assert set(engine.core.stats.predicted_wait.values()) == {0.0}
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("prompt_len", [16, 800])
def test_waits_are_predicted_about_as_they_come(prompt_len: int) -> None:
    """Rows are short with short prompts, tokens with long ones."""
    traffic = Traffic(16, max_waiting=10_000, max_batch_tokens=512)
    senders = [Sender(f"t{number}", 30.0, DEFAULT, prompt_len, 32) for number in range(3)]
    seen = traffic.run(senders, 12.0)
    ratios = [
        traffic.waits_predicted[name] / seen.waits[name]
        for name in seen.sent
        if seen.sent[name].submitted_at > 4.0 and seen.waits.get(name, 0.0) > 1.0
    ]
    assert len(ratios) > 20
    assert 0.5 < median(ratios) < 2.0


def test_a_tenants_own_backlog_is_what_it_waits_for() -> None:
    traffic = Traffic(16, max_waiting=10_000)
    traffic.run([Sender("warm", 20.0, DEFAULT, 32, 32)], 2.0)
    for number in range(300):
        traffic.send(traffic.now, f"greedy-{number}", Sender("greedy", 1.0, DEFAULT, 32, 32))
    for _ in range(10):
        traffic.step()
    predicted = traffic.scheduler.load_shedder.predicted_wait
    assert predicted(DEFAULT, "greedy") > 20 * predicted(DEFAULT, "small")
    assert predicted(PRIORITY, "small") == 0.0, "it takes a row"


# ---- shedding


def test_flex_is_shed_first_then_default_and_only_as_long_as_need_be() -> None:
    traffic = Traffic(16, max_waiting=10_000, ttft_targets=TARGETS)
    senders = [Sender(f"t{number}", 1.0, DEFAULT, 32, 32) for number in range(60)]
    senders += [Sender(f"t{number}", 1.0, FLEX, 32, 32) for number in range(20)]
    senders.append(Sender("urgent", 5.0, PRIORITY, 32, 32))
    seen = traffic.run(senders, 12.0)
    for rejected in seen.rejected.values():
        assert rejected.code == "overloaded"
        assert rejected.retry_after is not None
        assert rejected.retry_after >= 1.0
    late = [submit for submit in seen.sent.values() if submit.submitted_at > 4.0]
    shares = {
        priority: mean(submit.request_id in seen.rejected for submit in late if submit.priority is priority)
        for priority in PriorityClass
    }
    assert shares[PRIORITY] == 0.0
    assert 0.1 < shares[DEFAULT] < 0.7, "as many as are too many"
    assert shares[FLEX] > 0.95
    shed = traffic.core.stats.shed
    assert shed["flex"] == sum(seen.sent[name].priority is FLEX for name in seen.rejected)
    assert shed["default"] == sum(seen.sent[name].priority is DEFAULT for name in seen.rejected)
    waits = sorted(seen.waits[name] for name in seen.waits if seen.sent[name].priority is DEFAULT)
    # Some are overtaken by tenants that come later and were served less.
    assert waits[int(0.75 * len(waits))] < 1.5 * TARGETS[DEFAULT], "most had about what was promised"
    assert traffic.send(traffic.now, "later", Sender("t0", 1.0)) is None, "nobody waits any more"


def test_a_requests_own_target_goes_before_the_engines() -> None:
    engine = Engine(max_rows=1, max_waiting=1000, ttft_targets={DEFAULT: 30.0})
    engine.submit(submission("warm", [1], 10))
    engine.run()
    for number in range(3):
        assert engine.submit(submission(f"r{number}", [1], 10)) is None
    engine.step()
    # Ten steps of a second for each of the three before it.
    rejected = engine.core.submit(submission("hasty", [1], 10, ttft_target=5.0))
    assert rejected is not None
    assert rejected.code == "overloaded"
    assert rejected.retry_after == pytest.approx(25.0, abs=6.0)
    assert engine.submit(submission("patient", [1], 10, ttft_target=1000.0)) is None
    assert engine.core.submit(submission("nobody's", [1], 10)) is not None
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan")])
def test_a_target_that_makes_no_sense_is_refused(target: float) -> None:
    rejected = Engine().core.submit(submission("r", [1], 1, ttft_target=target))
    assert rejected is not None
    assert rejected.code == "invalid"
    assert "ttft_target" in rejected.message


# ---- a full queue


def test_a_full_queue_makes_room_for_who_has_less_in_it() -> None:
    engine = Engine(max_rows=1, max_waiting=16)
    engine.submit(submission("running", [1], 30, tenant="greedy"))
    engine.step()
    while engine.submit(submission(f"greedy{len(engine.submitted)}", [1], tenant="greedy")) is None:
        pass
    last = f"greedy{len(engine.submitted) - 1}"
    assert engine.submit(submission("small", [2], tenant="small")) is None
    engine.step()
    assert engine.rejected.keys() == {last}
    assert engine.rejected[last].code == "overloaded"
    assert engine.rejected[last].retry_after is not None
    assert engine.core.stats.shed == {"default": 2}
    while engine.submit(submission(f"small{len(engine.submitted)}", [2], tenant="small")) is None:
        pass
    waiting = [request.tenant for request in engine.scheduler.queue]
    assert abs(waiting.count("small") - waiting.count("greedy")) <= 2
    engine.run()
    engine.check_idle()


def test_who_has_run_is_never_shed() -> None:
    """A preempted request waits in a full queue: its client has tokens already."""
    engine = Engine(max_rows=1, max_waiting=2)
    engine.submit(submission("begun", [1], 30, tenant="greedy"))
    engine.step()
    engine.submit(submission("urgent", [2], 30, priority=PRIORITY, tenant="third"))
    engine.step()
    assert [request.request_id for request in engine.scheduler.queue] == ["begun"]
    engine.submit(submission("urgent1", [2], 5, priority=PRIORITY, tenant="third"))
    rejected = engine.core.submit(submission("urgent2", [2], 5, priority=PRIORITY, tenant="fourth"))
    assert rejected is not None
    engine.run()
    engine.check_idle()
    assert len(engine.tokens("begun")) == 30
