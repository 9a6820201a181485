"""What planning a step does to the queue: what is charged, who returns where, what a full house means."""

from __future__ import annotations

import pytest

from engine.protocol import PriorityClass
from tests.engine.plain.harness import Engine, alone, submission

PRIORITY, DEFAULT, FLEX = PriorityClass


def served(engine: Engine, tenant: str) -> float:
    """Tokens charged to a tenant, by their cost."""
    return engine.scheduler.queue._lanes[DEFAULT].tenants[tenant].served


def test_a_tenant_pays_for_the_prompt_tokens_that_are_computed() -> None:
    engine = Engine(num_blocks=100)
    prompt_ids = list(range(16))
    engine.submit(submission("first", prompt_ids, 2))
    engine.run()
    assert served(engine, "acme") == 16 + 2 * 2
    engine.submit(submission("second", prompt_ids, 3))
    engine.run()
    assert engine.finished["second"][1].usage.cached_tokens == 12
    assert served(engine, "acme") == 20 + 4 + 2 * 3


@pytest.mark.parametrize("depth", [0, 1])
def test_a_preempted_request_pays_for_its_prompt_once(depth: int) -> None:
    engine = Engine(num_blocks=9, depth=depth)
    for number, tenant in enumerate("ab"):
        engine.submit(submission(tenant, [number] * 4, 20, tenant=tenant))
    engine.run()
    engine.check_idle()
    assert engine.finished["b"][1].preemptions > 0
    assert [served(engine, tenant) for tenant in "ab"] == [4 + 2 * 20] * 2


def test_a_request_that_ran_out_of_memory_returns_before_tenants_that_were_served_less() -> None:
    engine = Engine(num_blocks=9)
    for number, tenant in enumerate("ab"):
        engine.submit(submission(tenant, [number] * 4, 20, tenant=tenant))
    engine.submit(submission("c", [9] * 20, 2, tenant="c"))
    engine.run()
    engine.check_idle()
    entered = engine.runner.entered
    assert entered.count("b") > 1
    assert entered[-1] == "c"


def test_a_request_that_made_way_comes_before_later_ones_of_its_tenant() -> None:
    engine = Engine(max_rows=1, num_blocks=100)
    engine.submit(submission("first", [1], 10))
    engine.submit(submission("second", [2], 10))
    engine.step()
    engine.submit(submission("urgent", [3], 2, priority=PRIORITY))
    engine.run()
    engine.check_idle()
    assert engine.runner.entered == ["first", "urgent", "first", "second"]


def test_rows_kept_short_for_priority_are_no_want_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(num_blocks=100)
    planning = engine.scheduler._planner
    monkeypatch.setattr(planning._bound, "is_closed_to", lambda priority: priority is not PRIORITY)
    engine.submit(submission("urgent", [1], 9, priority=PRIORITY))
    engine.submit(submission("waits", [2], 9))
    for _ in range(3):
        engine.step()
    assert engine.runner.entered == ["urgent"]
    assert not planning.is_short_of_blocks


def test_a_step_computes_no_more_tokens_than_it_may() -> None:
    engine = Engine(num_blocks=200, max_batch_tokens=16, max_rows=4, context_length=64)
    for number in range(4):
        engine.submit(submission(f"r{number}", [number] * 40, 3))
    widest = 0
    while engine.scheduler.has_requests:
        engine.step()
        widest = max(widest, sum(engine.scheduler.composition[0]))
    assert widest == 16
    engine.check_idle()


def test_a_request_may_stop_with_the_last_token_that_it_has_to_have() -> None:
    tokens = alone(submission("x", [4, 5], 9))[0]
    last = next(place for place in range(2, 9) if tokens[place] not in tokens[:place])
    engine = Engine()
    stops = {"min_tokens": last + 1, "stop_token_ids": (tokens[last],)}
    engine.submit(submission("r", [4, 5], 30, **stops))
    engine.run()
    engine.check_idle()
    assert engine.tokens("r") == tokens[: last + 1]
    assert engine.reason("r") == "stop"
