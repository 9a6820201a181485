"""The step loop's view: work or none, loads that end well or badly, a runner that fails, the gauges."""

from __future__ import annotations

import pytest

from engine.batch import Batch, LaunchedStep
from engine.core import EngineCore
from engine.outputs import RunnerCounters
from engine.protocol import AdapterRef, PriorityClass
from tests.engine.plain.harness import Engine, adapter, alone, submission

A, B = adapter("a"), adapter("b")


def test_an_engine_without_requests_has_no_work_and_a_step_is_harmless() -> None:
    engine = Engine()
    assert not engine.core.has_work
    assert not engine.step()
    engine.check_idle()


def test_waiting_for_a_load_is_no_work_until_it_ends() -> None:
    engine = Engine(auto_load=False)
    engine.submit(submission("r", [1], 2, adapter=A))
    engine.step()
    assert not engine.core.has_work
    assert engine.core.stats.slots_loading == 1
    engine.finish_load()
    assert engine.core.has_work
    engine.run()
    engine.check_idle()
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]


def test_a_loading_adapter_holds_up_nobody_else() -> None:
    engine = Engine(auto_load=False)
    engine.submit(submission("slow", [1], 2, adapter=A))
    engine.submit(submission("quick", [1], 2))
    engine.run()
    assert list(engine.finished) == ["quick"]
    engine.finish_load()
    engine.run()
    engine.check_idle()


def test_an_adapter_that_does_not_load_turns_its_requests_away_and_no_others() -> None:
    engine = Engine()
    engine.broken_adapters.add(A.digest)
    engine.submit(submission("broken", [1], 2, adapter=A, n=2))
    engine.submit(submission("other", [1], 2, adapter=B))
    engine.run()
    engine.check_idle()
    rejected = engine.rejected["broken"]
    assert rejected.code == "adapter_unavailable"
    assert A.digest in rejected.message
    assert "digest mismatch" in rejected.message
    assert engine.tokens("other") == alone(engine.submitted["other"])[0]
    assert engine.core.stats.rejected == 1


def test_an_adapter_that_failed_once_may_load_the_next_time() -> None:
    engine = Engine()
    engine.broken_adapters.add(A.digest)
    engine.submit(submission("first", [1], 2, adapter=A))
    engine.run()
    engine.broken_adapters.clear()
    engine.submit(submission("second", [1], 2, adapter=A))
    engine.run()
    engine.check_idle()
    assert list(engine.finished) == ["second"]


def test_a_request_that_has_run_ends_with_an_error_when_its_adapter_does_not_load_again() -> None:
    """Preempted, evicted, and then the file is gone: it is billed for what it got, so it is not rejected."""
    engine = Engine(num_blocks=13, block_size=4, num_slots=1, slot_patience_s=0.0)
    engine.submit(submission("base", [1] * 6, 30))
    engine.submit(submission("tuned", [2] * 6, 30, adapter=A))
    engine.run(until=lambda: engine.core.stats.preemptions > 0)
    engine.broken_adapters.add(A.digest)
    engine.submit(submission("other", [3], 2, adapter=B))
    engine.run()
    engine.check_idle()
    assert engine.finished["tuned"][1].finish_reason == "error"
    assert engine.finished["tuned"][0].usage.completion_tokens > 0
    assert {engine.finished[name][1].finish_reason for name in ("base", "other")} == {"length"}


def test_a_prefetched_adapter_is_ready_before_its_first_request() -> None:
    engine = Engine()
    engine.core.prefetch(A)
    engine.step()
    engine.submit(submission("r", [1], 2, adapter=A))
    engine.step()
    assert engine.tokens("r")
    assert engine.load_order == [A.digest]


def test_a_pinned_adapter_keeps_its_slot_until_it_is_let_go() -> None:
    engine = Engine(num_slots=2)
    engine.core.prefetch(A, pinned=True)
    for index in range(6):
        engine.submit(submission(f"r{index}", [1], 2, adapter=AdapterRef(f"{index + 5:064x}", 8)))
        engine.run()
    assert engine.load_order.count(A.digest) == 1
    assert engine.core.scheduler.slot_allocator.slots.find(A.digest) is not None
    engine.core.prefetch(A, pinned=False)
    for index in range(6, 9):
        engine.submit(submission(f"r{index}", [1], 2, adapter=AdapterRef(f"{index + 5:064x}", 8)))
        engine.run()
    assert engine.core.scheduler.slot_allocator.slots.find(A.digest) is None


def test_prefetching_nonsense_is_ignored() -> None:
    engine = Engine()
    engine.core.prefetch(AdapterRef("../x", 1))
    assert not engine.load_order
    assert not engine.core.has_work


class FailingRunner:
    depth = 0
    counters = RunnerCounters()

    def launch(self, batch: Batch) -> LaunchedStep:
        raise RuntimeError("the device is gone")


def test_what_the_runner_raises_ends_the_process() -> None:
    engine = Engine()
    core = EngineCore(engine.scheduler, FailingRunner())
    core.submit(submission("r", [1], 2))
    with pytest.raises(RuntimeError, match="the device is gone"):
        core.step()


def test_the_gauges_add_up() -> None:
    engine = Engine(max_rows=2, num_slots=3)
    for number in range(4):
        engine.submit(submission(f"r{number}", [number] * 5, 6, adapter=A if number % 2 else None))
    engine.step()
    engine.step()
    stats = engine.core.stats
    assert (stats.running, sum(stats.waiting.values())) == (2, 2)
    assert (stats.blocks_total, stats.slots_total, stats.slots_resident) == (64, 3, 1)
    assert stats.blocks_used == 4
    engine.run()
    stats = engine.core.stats
    assert stats.steps == engine.runner.num_steps
    assert stats.step_seconds > 0
    assert (stats.prompt_tokens, stats.completion_tokens) == (20, 24)
    assert stats.completion_tokens == sum(len(engine.tokens(name)) for name in engine.submitted)
    assert (stats.engine_id, stats.incarnation) == ("engine-0", "first")


def test_the_wait_for_admission_is_summed_by_class() -> None:
    engine = Engine(max_rows=1)
    engine.submit(submission("first", [1], 3))
    engine.submit(submission("second", [2], 3, priority=PriorityClass.FLEX))
    engine.now += 10
    engine.step()
    engine.now += 7
    engine.run()
    stats = engine.core.stats
    assert stats.admitted == {"default": 1, "flex": 1}
    waited = engine.finished["first"][1].scheduled_at
    assert waited is not None
    assert stats.queue_seconds["default"] == waited - 1000.0
    assert stats.queue_seconds["flex"] > stats.queue_seconds["default"] + 6


def test_a_request_is_reported_started_once_with_its_first_token() -> None:
    engine = Engine()
    engine.submit(submission("r", [1, 2, 3, 4, 5], 3, n=2))
    started = []
    while engine.core.has_work:
        outputs = engine.step()
        assert all(
            event.request_id in {chunk.request_id for chunk in outputs.chunks} for event in outputs.started
        )
        started += outputs.started
    assert [event.request_id for event in started] == ["r"]
    assert started[0].usage.completion_tokens == 1
    assert started[0].scheduled_at is not None
