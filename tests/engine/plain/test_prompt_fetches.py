"""Prompts that are fetched from another engine: requests wait for them, and never longer than it pays."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.protocol import Submit
from engine.scheduling.prompt_fetches import ArrivedBlocks
from tests.engine.plain.fetching import Source
from tests.engine.plain.harness import Engine, adapter, alone, submission
from tests.engine.plain.test_scheduler_properties import check_answer, submissions
from tests.support.examples import examples


def prompt(length: int, seed: int = 0) -> list[int]:
    random = Random(seed)
    return [random.randrange(60) for _ in range(length)]


def check_alone(engine: Engine) -> None:
    engine.check_idle()
    for name, submit in engine.submitted.items():
        if name not in engine.rejected:
            assert (engine.tokens(name), engine.reason(name)) == alone(submit)[:2]


def test_a_request_waits_for_its_prompt_and_others_run_meanwhile() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("long", prompt(33, 1)))
    engine.submit(submission("short", prompt(9, 2)))
    engine.run()
    assert engine.finished.keys() == {"short"}
    assert engine.core.stats.prompts_fetching == 1
    source.send("f0", 3)
    engine.run()
    assert engine.core.stats.fetched_tokens == 12
    assert "long" not in engine.finished
    source.send_all()
    engine.run()
    check_alone(engine)
    assert engine.core.stats.prefill_tokens == 9 + 1, "the last token alone was computed here"
    assert engine.core.stats.prompts_fetched == 1
    assert engine.finished["long"][0].usage.cached_tokens == 0
    assert source.num_under_way == 0


def test_what_the_other_engine_had_in_its_cache_is_billed_as_cached() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    source.cached_tokens = 20
    engine.submit(submission("long", prompt(33, 1)))
    source.send_all()
    engine.run()
    check_alone(engine)
    assert engine.finished["long"][0].usage.cached_tokens == 20
    assert engine.core.stats.cached_tokens == 20


@pytest.mark.parametrize("cause", ["lost", "refused", "failed"])
def test_the_rest_of_a_prompt_that_does_not_come_is_computed_here(cause: str) -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("long", prompt(31, 1)))
    source.send("f0", 3)
    engine.run()
    source.end("f0", cause)
    engine.run()
    check_alone(engine)
    assert engine.core.stats.fetch_fallbacks == {cause: 1}
    # Values that are not finite are not used, whatever came of them.
    assert engine.core.stats.prefill_tokens == (31 if cause == "failed" else 31 - 12)


def test_a_prompt_that_nothing_comes_of_is_given_up() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16, timeout_s=5.0)
    engine.submit(submission("long", prompt(33, 1)))
    engine.run()
    engine.now += 4.0
    source.send("f0")
    engine.run()
    engine.now += 4.0
    assert not engine.core.has_work, "its time counts from its last blocks on"
    engine.now += 1.0
    assert engine.core.has_work
    engine.run()
    check_alone(engine)
    assert source.cancelled == ["f0"]
    assert engine.core.stats.fetch_fallbacks == {"timeout": 1}


def test_no_engine_in_time_or_no_memory_means_that_the_prompt_is_computed_here() -> None:
    engine = Engine(num_blocks=17)
    source = Source(engine, min_tokens=16)
    source.is_late = True
    engine.submit(submission("late", prompt(25, 1)))
    source.is_late = False
    engine.submit(submission("large", prompt(45, 2)))
    engine.run()
    check_alone(engine)
    assert engine.core.stats.fetch_fallbacks == {"unavailable": 1, "memory": 1}


def test_an_abort_cancels_the_fetch_and_blocks_that_come_later_are_dropped() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("gone", prompt(33, 1)))
    source.send("f0", 2)
    engine.step()
    source.send("f0", 2)
    engine.core.abort("gone")
    assert source.cancelled == ["f0"]
    engine.run()
    engine.check_idle()
    assert source.num_under_way == 0
    assert engine.finished["gone"][0].usage.prompt_tokens == 0
    assert engine.core.stats.fetch_fallbacks == {}


def test_a_request_that_ends_between_its_prompt_and_its_admission_holds_nothing() -> None:
    engine = Engine(max_rows=1)
    source = Source(engine, min_tokens=16)
    engine.submit(submission("first", prompt(5, 2), 20))
    engine.step()
    engine.submit(submission("gone", prompt(33, 1)))
    source.send_all()
    engine.step()
    assert engine.scheduler.fetches.held_ids()
    engine.core.abort("gone")
    assert not engine.scheduler.fetches.held_ids()
    engine.run()
    engine.check_idle()


def test_an_adapter_that_cannot_be_loaded_ends_a_request_whose_prompt_is_fetched() -> None:
    engine = Engine(auto_load=False)
    source = Source(engine, min_tokens=16)
    broken = adapter("broken")
    engine.broken_adapters.add(broken.digest)
    engine.submit(submission("adapted", prompt(33, 1), adapter=broken))
    assert engine.loads, "its adapter is loaded while its prompt is computed"
    engine.finish_load()
    engine.run()
    assert engine.rejected["adapted"].code == "adapter_unavailable"
    assert source.cancelled == ["f0"]
    engine.check_idle()


def test_the_load_of_an_adapter_is_charged_once_the_request_is_queued() -> None:
    served = []
    for min_tokens in (16, 1000):  # fetched, and not
        engine = Engine(max_rows=1)
        source = Source(engine, min_tokens=min_tokens)
        engine.submit(submission("first", prompt(5, 2), 20, tenant="other"))
        engine.step()
        engine.submit(submission("adapted", prompt(33, 1), adapter=adapter("a")))
        source.send_all()
        engine.step()
        (request,) = engine.scheduler.queue
        assert request.tenant_share is not None
        served.append(request.tenant_share.served)
    assert served[0] == served[1] > 0


def test_running_requests_take_blocks_from_fetches_rather_than_from_one_another() -> None:
    engine = Engine(num_blocks=25)
    source = Source(engine, min_tokens=16)
    engine.submit(submission("running", prompt(9, 1), 50))
    engine.submit(submission("beside", prompt(9, 3), 50))
    engine.step()
    engine.submit(submission("long", prompt(45, 2)))
    source.send("f0", 4)
    engine.run()
    check_alone(engine)
    assert engine.core.stats.fetch_fallbacks == {"memory": 1}


def test_requests_that_hold_fetched_blocks_do_not_lock_each_other_out() -> None:
    engine = Engine(num_blocks=17)
    source = Source(engine, min_tokens=16)
    engine.submit(submission("first", prompt(29, 1), 30))
    source.is_late = True
    engine.submit(submission("ahead", prompt(41, 2), 20))
    source.send_all()
    engine.run()
    check_alone(engine)


def test_contents_that_another_block_has_already_are_held_once() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("one", prompt(33, 1)))
    engine.submit(submission("two", prompt(33, 1)))
    assert source.asked.keys() == {"f0", "f1"}
    source.send("f0", 100)
    engine.step()
    source.send("f1", 100)
    engine.run()
    check_alone(engine)


def test_no_step_waits_for_more_than_two_messages_to_be_written() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("running", prompt(5, 2), 20))
    engine.submit(submission("long", prompt(33, 1)))
    for _ in range(8):
        source.send("f0")
    written = []
    while engine.core.stats.prompts_fetching:
        engine.step()
        written.append(engine.core.stats.fetched_tokens)
    assert written == [8, 16, 24, 32, 32]
    engine.run()
    check_alone(engine)


def test_memory_of_an_engine_whose_connection_is_gone_is_not_read() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("long", prompt(33, 1)))
    source.send("f0")
    engine.step()
    source.send("f0", 3)
    (arrived,) = engine.core._prompt_events
    assert isinstance(arrived, ArrivedBlocks)
    arrived.is_lost = True
    source.end("f0", "lost")
    engine.run()
    check_alone(engine)
    assert engine.core.stats.fetched_tokens == 4
    assert source.num_under_way == 0


def test_blocks_out_of_order_end_the_fetch() -> None:
    engine = Engine()
    source = Source(engine, min_tokens=16)
    engine.submit(submission("long", prompt(33, 1)))
    source.num_sent["f0"] = 2
    source.send("f0")
    engine.run()
    check_alone(engine)
    assert engine.core.stats.fetch_fallbacks == {"invalid": 1}
    assert source.num_under_way == 0


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(submissions("r"), min_size=1, max_size=10),
    num_blocks=st.integers(13, 40),
    num_slots=st.integers(1, 4),
    max_rows=st.integers(1, 8),
    depth=st.integers(0, 1),
    random=st.integers(0, 2**32).map(Random),
)
def test_any_load_is_served_as_if_nothing_were_fetched(
    requests: list[Submit], num_blocks: int, num_slots: int, max_rows: int, depth: int, random: Random
) -> None:
    engine = Engine(
        num_blocks=num_blocks,
        num_slots=num_slots,
        auto_load=False,
        max_rows=max_rows,
        depth=depth,
        max_waiting=1000,
    )
    source = Source(engine, min_tokens=8, timeout_s=60.0)
    coming = [
        msgspec.structs.replace(submit, request_id=f"r{number}") for number, submit in enumerate(requests)
    ]
    aborted: set[str] = set()
    while coming or engine.core.has_work or engine.loads or source.asked:
        action = random.random()
        if coming and action < 0.3:
            assert engine.submit(coming.pop()) is None
        elif engine.loads and (action < 0.4 or not engine.core.has_work):
            engine.finish_load()
        elif source.asked and (action < 0.6 or not engine.core.has_work):
            fetch_id = random.choice(sorted(source.asked))
            if random.random() < 0.1:
                source.end(fetch_id, random.choice(["lost", "refused", "failed"]))
            else:
                source.send(fetch_id, random.randint(1, 3))
        elif action < 0.63:
            engine.abort_one(random, aborted)
        else:
            engine.now += 1.0
            engine.step()
            is_fetching = engine.scheduler.fetches.num_fetching > 0
            assert source.is_ordered or is_fetching, "a later step could read before all is written"
    engine.check_idle()
    assert not engine.rejected
    assert source.num_under_way == 0
    for submit in engine.submitted.values():
        check_answer(engine, submit, aborted)
    counters = engine.scheduler.fetches.counters
    event("fetched" if counters.fetched else "nothing fetched")
    for cause in counters.fallbacks:
        event(f"fell back: {cause}")
