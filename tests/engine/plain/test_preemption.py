"""Who makes way for whom: classes, tenants of one class, and that whoever had to go still ends."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.protocol import PriorityClass
from engine.request import Request
from engine.scheduling.fairness import LOAD_COST_PER_RANK
from engine.scheduling.preemption import MIN_GAIN
from tests.engine.plain.harness import Engine, adapter, alone, submission
from tests.engine.plain.traffic import Sender, Traffic

PRIORITY, DEFAULT, FLEX = PriorityClass


def running(engine: Engine) -> list[Request]:
    return engine.scheduler._running.requests


def names(engine: Engine) -> list[str]:
    return [request.request_id for request in running(engine)]


def check_all(engine: Engine) -> None:
    engine.run()
    engine.check_idle()
    for request_id, submit in engine.submitted.items():
        assert engine.tokens(request_id) == alone(submit)[0]


# ---- classes


@pytest.mark.parametrize("depth", [0, 1])
def test_priority_takes_rows_of_flex_then_of_default_the_last_that_came_first(depth: int) -> None:
    engine = Engine(max_rows=4, num_blocks=200, depth=depth)
    for number, priority in enumerate([DEFAULT, DEFAULT, FLEX, FLEX]):
        engine.submit(submission(f"{priority}{number}", [number], 30, priority=priority))
    for _ in range(3):
        engine.step()
    left = []
    for number in range(4):
        engine.submit(submission(f"urgent{number}", [9, number], 30, priority=PRIORITY))
        before = names(engine)
        engine.step()
        left += [name for name in before if name not in names(engine)]
    assert left == ["flex3", "flex2", "default1", "default0"]
    assert engine.core.stats.preempted == {"flex": 2, "default": 2}
    engine.submit(submission("urgent4", [8], 5, priority=PRIORITY))
    engine.step()
    assert "urgent4" not in names(engine), "there is nobody below it left"
    check_all(engine)


def test_default_takes_rows_of_flex_and_flex_of_nobody() -> None:
    engine = Engine(max_rows=2, num_blocks=200)
    engine.submit(submission("flex0", [0], 30, priority=FLEX))
    engine.submit(submission("default0", [1], 30))
    engine.step()
    engine.submit(submission("flex1", [2], 30, priority=FLEX))
    engine.step()
    assert names(engine) == ["default0", "flex0"]
    engine.submit(submission("default1", [3], 30))
    engine.step()
    assert names(engine) == ["default0", "default1"]
    check_all(engine)


def test_an_urgent_request_is_computed_in_the_step_that_takes_it_in() -> None:
    """It waits neither for a row nor for the rest of a long prompt of a lower class."""
    engine = Engine(max_rows=2, num_blocks=200, max_batch_tokens=16)
    engine.submit(submission("long", list(range(50)), 5))
    engine.submit(submission("other", [1, 2], 20, tenant="other"))
    engine.step()
    engine.submit(submission("urgent", list(range(10)), 5, priority=PRIORITY, tenant="third"))
    engine.step()
    assert len(engine.tokens("urgent")) == 1
    check_all(engine)


def test_a_small_tenants_prompt_goes_before_the_rest_of_a_long_one() -> None:
    engine = Engine(max_rows=8, num_blocks=200, max_batch_tokens=16)
    for number in range(3):
        engine.submit(submission(f"long{number}", list(range(number, 50 + number)), 5, tenant="big"))
    engine.step()
    engine.step()
    engine.submit(submission("short", [7, 8, 9], 5, tenant="small"))
    engine.step()
    assert len(engine.tokens("short")) == 1
    check_all(engine)


def test_blocks_are_taken_as_rows_are() -> None:
    engine = Engine(max_rows=8, num_blocks=25, block_size=4)
    for number in range(4):
        engine.submit(submission(f"flex{number}", [number] * 17, 20, priority=FLEX, tenant=f"t{number}"))
    for _ in range(2):
        engine.step()
    num_running = len(running(engine))
    engine.submit(submission("urgent", [50] * 30, 4, priority=PRIORITY))
    engine.step()
    assert engine.tokens("urgent")
    assert len(running(engine)) < num_running + 1
    check_all(engine)


@pytest.mark.parametrize("depth", [0, 1])
def test_no_preempted_request_returns_in_the_step_that_preempted_it(depth: int) -> None:
    """The token it drew last may be in flight: it is known only when that step is committed."""
    engine = Engine(num_blocks=17, block_size=4, max_batch_tokens=64, depth=depth)
    engine.submit(submission("large", [1] * 28, 8, tenant="bolt"))
    engine.submit(submission("small", [2] * 8, 8))
    for _ in range(2):
        engine.step()
    engine.submit(submission("urgent", [3] * 40, 4, priority=PRIORITY))
    engine.step()
    assert names(engine) == ["urgent"], "there is room for the small one beside it again"
    engine.step()
    assert names(engine) == ["urgent", "small"]
    check_all(engine)


def test_a_prompt_under_way_goes_on_behind_an_urgent_one() -> None:
    engine = Engine(num_blocks=200, max_batch_tokens=16)
    engine.submit(submission("long", [1] * 50, 2))
    engine.step()
    engine.submit(submission("urgent", [2] * 40, 2, priority=PRIORITY))
    engine.step()
    assert {one.request_id: one.computed_len for one in running(engine)} == {"urgent": 15, "long": 17}
    check_all(engine)


def test_nobody_goes_where_that_would_not_make_room_enough() -> None:
    engine = Engine(max_rows=8, num_blocks=25, block_size=4)
    engine.submit(submission("big", [1] * 40, 20, priority=PRIORITY, tenant="big"))
    engine.submit(submission("flex", [2] * 8, 20, priority=FLEX))
    for _ in range(2):
        engine.step()
    engine.submit(submission("urgent", [3] * 60, 2, priority=PRIORITY, tenant="third"))
    engine.step()
    assert names(engine) == ["big", "flex"]
    assert not engine.core.stats.preemptions
    check_all(engine)


def test_who_made_way_is_left_alone_until_it_has_gained_something() -> None:
    engine = Engine(max_rows=1, num_blocks=200, context_length=400)
    engine.submit(submission("victim", [1], 200))
    engine.step()
    gains = []
    for number in range(3):
        before = len(engine.tokens("victim"))
        engine.run(until=lambda: names(engine) == ["victim"])
        engine.submit(submission(f"urgent{number}", [2, number], 1, priority=PRIORITY))
        engine.run(until=lambda name=f"urgent{number}": name in engine.finished)  # type: ignore[misc]
        gains.append(len(engine.tokens("victim")) - before)
    assert gains[0] == 0
    assert gains[1] >= MIN_GAIN
    assert gains[2] >= 2 * MIN_GAIN
    assert len(engine.tokens("victim")) < 200, "it did not end before"
    check_all(engine)


# ---- tenants of one class


def test_a_tenant_with_nothing_takes_from_the_one_that_has_the_most() -> None:
    engine = Engine(max_rows=8, num_blocks=200)
    for number in range(12):
        engine.submit(submission(f"greedy{number}", [number], 30, tenant="greedy"))
    engine.step()
    for number in range(6):
        engine.submit(submission(f"small{number}", [20, number], 30, tenant="small"))
    engine.step()
    tenants = Counter(request.tenant for request in running(engine))
    # A fourth row for the small one would leave the other with no more than that.
    assert tenants == {"greedy": 5, "small": 3}
    assert names(engine)[0] == "greedy0", "its first goes on"
    engine.step()
    assert Counter(request.tenant for request in running(engine)) == tenants, "nobody takes anything back"
    check_all(engine)


def test_tenants_with_about_as_many_rows_leave_each_other_in_peace() -> None:
    engine = Engine(max_rows=6, num_blocks=300)
    for number in range(30):
        engine.submit(submission(f"r{number}", [number], 12, tenant=f"t{number % 3}"))
    check_all(engine)
    assert not engine.core.stats.preemptions


def test_a_flood_of_small_tenants_ends_the_big_ones_requests_too() -> None:
    engine = Engine(max_rows=2, num_blocks=300, context_length=200, max_waiting=4000)
    for number in range(4):
        engine.submit(submission(f"big{number}", [number], 40, tenant="big"))
    for number in range(600):
        engine.submit(submission(f"small{number}", [9, number % 60], 3, tenant=f"s{number % 6}"))
        engine.step()
    # Half of one of two rows, or a seventh of both: 300 tokens by either count, and it asks for 160.
    assert all(f"big{number}" in engine.finished for number in range(4))
    check_all(engine)


# ---- shares


def test_who_has_an_adapter_brought_pays_for_it_once() -> None:
    engine = Engine(auto_load=False)
    for number, tenant in enumerate(["first", "second", "first"]):
        engine.submit(submission(f"r{number}", [number], 4, tenant=tenant, adapter=adapter("a", rank=16)))
    served = {
        request.tenant: request.tenant_share.served
        for request in engine.scheduler.queue
        if request.tenant_share
    }
    # The second tenant is lifted to the first, and pays nothing itself.
    assert served == dict.fromkeys(["first", "second"], LOAD_COST_PER_RANK * 16)
    engine.finish_load()
    check_all(engine)
    engine.submit(submission("base", [8], 4, tenant="third"))
    engine.submit(submission("adapted", [9], 4, tenant="fourth", adapter=adapter("a", rank=16)))
    base, adapted = [
        request.tenant_share.served for request in engine.scheduler.queue if request.tenant_share
    ]
    assert adapted == base, "it is there already"
    check_all(engine)


def test_two_overloaded_classes_share_the_engine_by_weight() -> None:
    traffic = Traffic(16, max_waiting=10_000)
    senders = [Sender("acme", 60.0, PRIORITY, 32, 32), Sender("bolt", 60.0, DEFAULT, 32, 32)]
    seen = traffic.run(senders, 30.0)
    tokens = {name: sum(seen.num_tokens.get(of, 0) for of in seen.of(name)) for name in ("acme", "bolt")}
    assert 0.6 * 4 < tokens["acme"] / tokens["bolt"] < 1.6 * 4


@pytest.mark.parametrize("priority", [PRIORITY, DEFAULT])
def test_flex_never_starves_past_its_bound(priority: PriorityClass) -> None:
    """Endless load of a higher class, three times what the engine can do."""
    bound = 5.0
    traffic = Traffic(16, flex_wait_s=bound, max_waiting=10_000)
    senders = [Sender(f"t{number}", 40.0, priority, 32, 32) for number in range(3)]
    senders.append(Sender("patient", 0.3, FLEX, 32, 32))
    seen = traffic.run(senders, 30.0)
    sent = [name for name in seen.of("patient") if seen.sent[name].submitted_at < 20.0]
    waits = [seen.waits.get(name, float("inf")) for name in sent]
    assert len(waits) >= 4
    assert max(waits) < bound + 2.0
    assert max(waits) > 0.9 * bound, "without its bound it would have waited for longer"
    assert all(name in seen.finished for name in sent), "what was admitted in turn was left to end"
