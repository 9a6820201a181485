"""Depth 1: steps are launched before the last one is read, and nobody can tell but by the clock."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from engine.protocol import PriorityClass, Submit, UsageEvent
from engine.request import RequestState
from tests.engine.plain.harness import EOS, VOCAB_SIZE, Engine, adapter, alone, submission
from tests.engine.plain.test_scheduler_properties import check_answer, submissions
from tests.support.examples import examples


def overlapped(**options: object) -> Engine:
    return Engine(depth=1, **options)  # type: ignore[arg-type]


def stopping(prompt_ids: list[int], place: int) -> dict[str, tuple[int, ...]]:
    """Stop at the token that is drawn at `place`, and not before."""
    tokens = alone(submission("x", prompt_ids, place + 1))[0]
    assert tokens[place] not in tokens[:place]
    return {"stop_token_ids": (tokens[place],)}


# ---- the pipeline


def test_a_step_is_launched_before_the_last_one_is_read_and_none_is_read_early() -> None:
    engine = overlapped()
    engine.submit(submission("r", [1, 2, 3], 3))
    assert not engine.step().chunks, "the first step has only just been launched"
    assert engine.core.has_work
    assert len(engine.runner.in_flight) == 1
    assert len(engine.step().chunks) == 1
    assert len(engine.runner.in_flight) == 1
    engine.run()
    engine.check_idle()
    assert engine.runner.most_in_flight == 2
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]


def test_a_lone_token_is_told_in_the_next_turn_without_another_launch() -> None:
    """Nothing else runs: its result is read as soon as there is nothing to launch."""
    engine = overlapped()
    engine.submit(submission("r", [1, 2], 1))
    engine.step()
    outputs = engine.step()
    assert [chunk.finish_reason for chunk in outputs.chunks] == ["length"]
    assert outputs.finished
    assert engine.runner.num_steps == 1
    assert not engine.core.has_work
    engine.check_idle()


def test_what_ends_by_length_is_in_no_step_past_its_last() -> None:
    engine = overlapped()
    engine.submit(submission("r", [1, 2, 3], 5))
    engine.run()
    assert engine.runner.num_steps == 5
    assert engine.core.stats.steps == 5


def test_what_ends_by_length_makes_room_while_its_last_token_is_drawn() -> None:
    """One row, one request after the other: not a step is lost between them."""
    engine = overlapped(max_rows=1)
    for number in range(3):
        engine.submit(submission(f"r{number}", [number, 1], 4, tenant=f"t{number}"))
    engine.run()
    engine.check_idle()
    assert engine.runner.num_steps == 12
    for submit in engine.submitted.values():
        assert engine.tokens(submit.request_id) == alone(submit)[0]


def test_the_step_after_a_stop_is_dropped() -> None:
    engine = overlapped()
    engine.submit(submission("r", [4, 5], 40, **stopping([4, 5], 6)))
    engine.run()
    engine.check_idle()
    assert engine.runner.num_steps == 8, "six tokens, the stop, and the step that could not know"
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]
    assert engine.reason("r") == "stop"
    finished, _ = engine.finished["r"]
    assert finished.usage.completion_tokens == 7 == engine.core.stats.completion_tokens


def test_a_step_of_dropped_rows_alone_is_still_collected() -> None:
    engine = overlapped()
    engine.submit(submission("r", [4, 5], 40, **stopping([4, 5], 2)))
    engine.run(until=lambda: bool(engine.finished))
    assert engine.core.has_work, "a step is in flight"
    assert not engine.step()
    assert not engine.core.has_work
    assert engine.core.stats.steps == engine.runner.num_steps
    engine.check_idle()


def test_a_failed_row_ends_alone_and_its_next_step_is_dropped() -> None:
    engine = overlapped(max_batch_tokens=8)
    poisoned, healthy = list(range(12)), list(range(20, 32))
    engine.runner.fail_prompts.add(tuple(poisoned))
    engine.submit(submission("poisoned", poisoned, 4, n=2))
    engine.submit(submission("healthy", healthy, 4))
    engine.run()
    engine.check_idle()
    assert [engine.reason("poisoned", index) for index in range(2)] == ["error", "error"]
    assert engine.finished["poisoned"][0].usage.completion_tokens == 0
    assert engine.tokens("healthy") == alone(engine.submitted["healthy"])[0]
    engine.runner.fail_prompts.clear()
    engine.submit(submission("again", poisoned, 4))
    engine.run()
    assert engine.finished["again"][0].usage.cached_tokens == 0
    assert engine.tokens("again") == alone(engine.submitted["again"])[0]


@pytest.mark.parametrize("num_steps", range(1, 6))
def test_an_abort_between_a_launch_and_its_commit_bills_what_was_told(num_steps: int) -> None:
    engine = overlapped(num_slots=1)
    engine.submit(submission("r", [1, 2, 3], 30, n=2, adapter=adapter("a")))
    for _ in range(num_steps):
        engine.step()
    told = sum(len(engine.tokens("r", index)) for index in range(2))
    engine.core.abort("r")
    stats = engine.core.stats
    assert (stats.running, stats.blocks_used) == (0, 0), "what it held is free, although a step still uses it"
    engine.submit(submission("next", [7, 8, 9], 3, adapter=adapter("b")))
    engine.run()
    engine.check_idle()
    assert engine.finished["r"][0].usage.completion_tokens == told
    assert engine.tokens("next") == alone(engine.submitted["next"])[0]


def test_what_the_runner_raises_comes_out_of_the_step() -> None:
    engine = overlapped()
    engine.submit(submission("r", [1, 2, 3], 30))
    engine.step()
    engine.runner.in_flight[0].result = lambda: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        engine.step()


# ---- preemption


def test_a_token_in_flight_survives_its_requests_preemption() -> None:
    engine = overlapped(num_blocks=13, block_size=4)
    for number in range(2):
        engine.submit(submission(f"r{number}", [number] * 6, 30, tenant=f"t{number}"))
    engine.run(until=lambda: engine.core.stats.preemptions > 0)
    (victim,) = engine.scheduler.queue
    known = len(engine.tokens("r1"))
    assert victim.state is RequestState.WAITING
    assert not victim.num_pending, "the step that drew it was committed after the preemption"
    assert victim.total_len == 6 + known
    assert known == len(engine.tokens("r0")), "nothing was drawn twice"
    engine.run()
    engine.check_idle()
    for submit in engine.submitted.values():
        assert engine.tokens(submit.request_id) == alone(submit)[0]


def test_a_preempted_requests_last_token_in_flight_may_end_it() -> None:
    """Its stop is drawn in the step after which it is preempted: it leaves from the queue."""
    prompts = [[0] * 6, [1] * 6]
    probe = overlapped(num_blocks=13, block_size=4)
    for number, prompt_ids in enumerate(prompts):
        probe.submit(submission(f"r{number}", prompt_ids, 30, tenant=f"t{number}"))
    probe.run(until=lambda: probe.core.stats.preemptions > 0)
    place = len(probe.tokens("r1")) - 1
    fields = {"temperature": 1.0, "tenant": "t1", "adapter": adapter("a")}
    for seed in range(200):  # one whose token there is new to it
        tokens = alone(submission("x", prompts[1], 30, seed=seed, **fields))[0]
        if tokens[place] not in tokens[:place]:
            break
    engine = overlapped(num_blocks=13, block_size=4)
    engine.submit(submission("r0", prompts[0], 30, tenant="t0"))
    engine.submit(submission("r1", prompts[1], 30, seed=seed, stop_token_ids=(tokens[place],), **fields))
    engine.run()
    engine.check_idle()
    assert engine.tokens("r1") == tokens[: place + 1]
    assert (engine.core.stats.preemptions, engine.runner.entered) == (1, ["r0", "r1"])


def test_a_requests_last_token_is_not_preempted_away() -> None:
    """The last in rank draws its last token as the first needs a block: its blocks are free by then."""
    engine = overlapped(num_blocks=7, block_size=4)
    engine.submit(submission("r0", [0] * 8, 12, tenant="t0"))
    engine.submit(submission("r1", [1] * 8, 5, tenant="t1"))
    engine.run()
    engine.check_idle()
    twin = Engine(num_blocks=7, block_size=4)
    for submit in engine.submitted.values():
        twin.submit(submit)
    twin.run()
    assert engine.core.stats.preemptions == twin.core.stats.preemptions
    assert engine.runner.batches == twin.runner.batches


# ---- prefix cache and choices


def test_a_prompt_in_flight_is_found_by_the_next_request() -> None:
    engine = overlapped()
    engine.submit(submission("first", list(range(12)), 6))
    engine.step()
    assert not engine.tokens("first")
    engine.submit(submission("second", [*range(10), 50, 51], 3))
    engine.run()
    engine.check_idle()
    assert engine.finished["second"][0].usage.cached_tokens == 8
    assert engine.tokens("second") == alone(engine.submitted["second"])[0]


def test_siblings_enter_while_the_first_choices_prompt_is_computed() -> None:
    engine = overlapped()
    engine.submit(submission("r", list(range(13)), 5, n=3, temperature=1.0, seed=11))
    engine.step()
    engine.step()
    assert [new.computed_len for new in engine.runner.batches[1].new_rows] == [12, 12]
    engine.run()
    engine.check_idle()
    for index in range(3):
        assert engine.tokens("r", index) == alone(engine.submitted["r"], index)[0]
    assert engine.finished["r"][0].usage.cached_tokens == 0


def test_siblings_that_a_commit_brings_are_work() -> None:
    """The prompt's last token comes in a step of its own, and nothing else runs when that is read."""
    engine = overlapped(max_batch_tokens=8)
    engine.submit(submission("r", list(range(9)), 1, n=2))
    engine.run()
    engine.check_idle()
    assert [engine.reason("r", index) for index in range(2)] == ["length", "length"]


def test_the_token_drawn_after_a_stop_is_never_named_in_the_prefix_cache() -> None:
    """With blocks of one token every computed one would be findable: it must be those of depth 0."""
    cached = []
    for depth in (0, 1):
        engine = Engine(num_blocks=65, block_size=1, depth=depth)
        engine.submit(submission("r", [4, 5], 40, **stopping([4, 5], 6)))
        engine.run()
        tokens = engine.tokens("r")
        following = alone(submission("x", [4, 5], 9))[0]
        assert following[:7] == tokens
        engine.submit(submission("next", [4, 5, *following, 9], 2))
        engine.run()
        cached.append(engine.finished["next"][0].usage.cached_tokens)
    assert cached == [8, 8], "the prompt and six tokens: the stop itself need not be computed"


# ---- as without overlap


def ledger_line(event: UsageEvent) -> tuple[object, ...]:
    return (event.request_id, event.tenant, event.usage, event.finish_reason, event.n, event.preemptions)


def numbered(submits: list[Submit]) -> list[Submit]:
    return [msgspec.structs.replace(submit, request_id=f"r{number}") for number, submit in enumerate(submits)]


def limited(submits: list[Submit]) -> list[Submit]:
    """Each ends by its limit alone, and shares no prefix: each tenant has one request."""
    unstopped = {"ignore_eos": True, "stop": (), "stop_token_ids": (), "min_tokens": 0}
    alike = []
    for number, submit in enumerate(submits):
        sampling = msgspec.structs.replace(submit.sampling, **unstopped)
        alike.append(msgspec.structs.replace(submit, sampling=sampling, n=1, tenant=f"t{number}"))
    return numbered(alike)


# A victim's last token was charged after its tenant was lifted, with a step in flight alone.
LIFTED = limited(
    [
        submission("r", [1] * 9 + [0] * (num_prompt - 9), num_new, priority=priority, adapter=ref)
        for num_prompt, num_new, priority, ref in [
            *[(10, 1, PriorityClass.PRIORITY, None)] * 4,
            (17, 1, PriorityClass.PRIORITY, None),
            (17, 7, PriorityClass.DEFAULT, None),
            (18, 14, PriorityClass.PRIORITY, None),
            (10, 1, PriorityClass.PRIORITY, None),
            (10, 1, PriorityClass.DEFAULT, adapter("a")),
        ]
    ]
)


# The last block of a scored prompt was registered with a step in flight alone: its last token alone fills it.
SCORED = limited(
    [
        submission("r", [1] * 9 + [0] * 4, 5),
        submission("r", [1] * 5 + [2] * 15, 0, prompt_logprobs=0),
    ]
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(submits=LIFTED, num_blocks=13, max_rows=1, max_batch_tokens=8)
@example(submits=SCORED, num_blocks=13, max_rows=2, max_batch_tokens=32)
@given(
    submits=st.lists(submissions("r"), min_size=1, max_size=10).map(limited),
    num_blocks=st.integers(13, 30),
    max_rows=st.integers(1, 8),
    max_batch_tokens=st.integers(8, 40),
)
def test_where_limits_alone_end_requests_the_batches_are_the_same(
    submits: list[Submit], num_blocks: int, max_rows: int, max_batch_tokens: int
) -> None:
    """Everything about a step is known when it is planned: not a row, a block or a preemption differs."""
    engines = [
        Engine(
            num_blocks=num_blocks,
            num_slots=5,
            max_rows=max_rows,
            max_batch_tokens=max_batch_tokens,
            depth=depth,
        )
        for depth in (0, 1)
    ]
    for engine in engines:
        for submit in submits:
            assert engine.submit(submit) is None
        engine.run()
        engine.check_idle()
    one, other = engines
    assert one.runner.batches == other.runner.batches
    assert {name: one.tokens(name) for name in one.submitted} == {
        name: other.tokens(name) for name in other.submitted
    }
    assert sorted(map(ledger_line, one.events)) == sorted(map(ledger_line, other.events))
    event("preempted" if one.core.stats.preemptions else "never preempted")


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    waves=st.lists(st.lists(submissions("r"), min_size=1, max_size=5), min_size=1, max_size=3),
    fails=st.booleans(),
)
def test_the_ledger_is_the_same_line_by_line(waves: list[list[Submit]], fails: bool) -> None:
    """Room for all: stops, choices, failures, adapters and shared prefixes are billed alike, cached tokens
    too. A wave is submitted when the last one is over.
    """
    # Nobody else begins as the one that fails: when its blocks lose their names is a matter of steps.
    broken = msgspec.structs.replace(waves[0][0], prompt_ids=[60, 61, *waves[0][0].prompt_ids])
    waves[0].append(broken)
    ledgers, answers = [], []
    for depth in (0, 1):
        engine = Engine(num_blocks=600, num_slots=5, max_rows=16, max_batch_tokens=512, depth=depth)
        if fails:
            engine.runner.fail_prompts.add(tuple(broken.prompt_ids))
        number = 0
        for wave in waves:
            for submit in wave:
                number += 1
                assert engine.submit(msgspec.structs.replace(submit, request_id=f"r{number}")) is None
            engine.run()
            engine.check_idle()
        ledgers.append(sorted(map(ledger_line, engine.events)))
        answers.append(
            {
                (name, index): [
                    (chunk.token_ids, chunk.logprobs, chunk.finish_reason, chunk.stop) for chunk in chunks
                ]
                for name, choices in engine.chunks.items()
                for index, chunks in choices.items()
            }
        )
    assert ledgers[0] == ledgers[1]
    assert answers[0] == answers[1]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    submits=st.lists(submissions("r"), min_size=1, max_size=12).map(numbered),
    num_blocks=st.integers(13, 30),
    num_slots=st.integers(1, 4),
    max_rows=st.integers(1, 8),
    max_batch_tokens=st.integers(8, 40),
    num_poisoned=st.integers(0, 2),
    random=st.integers(0, 2**32).map(Random),
)
def test_any_load_is_served_as_if_each_were_alone(
    submits: list[Submit],
    num_blocks: int,
    num_slots: int,
    max_rows: int,
    max_batch_tokens: int,
    num_poisoned: int,
    random: Random,
) -> None:
    """Too little of everything, aborts and loads at any moment: who is not aborted or broken gets what he
    would get alone, who is gets the beginning of it, and each is billed for what he was told.
    """
    engine = overlapped(
        num_blocks=num_blocks,
        num_slots=num_slots,
        auto_load=False,
        max_rows=max_rows,
        max_batch_tokens=max_batch_tokens,
        max_waiting=1000,
    )
    poisoned = {tuple(submit.prompt_ids) for submit in submits[:num_poisoned]}
    engine.runner.fail_prompts |= poisoned
    coming = submits.copy()
    aborted: set[str] = set()
    while coming or engine.core.has_work or engine.loads:
        action = random.random()
        if coming and action < 0.3:
            assert engine.submit(coming.pop()) is None
        elif engine.loads and (action < 0.4 or not engine.core.has_work):
            engine.finish_load()
        elif action < 0.42:
            engine.abort_one(random, aborted)
        else:
            engine.now += 1.0
            engine.step()
    engine.check_idle()
    assert not engine.rejected
    assert engine.core.stats.completion_tokens == sum(
        finished.usage.completion_tokens for finished, _ in engine.finished.values()
    )
    for submit in engine.submitted.values():
        if tuple(submit.prompt_ids) in poisoned:
            for index in range(submit.n):
                assert engine.reason(submit.request_id, index) in ("error", "abort")
                assert not engine.tokens(submit.request_id, index)
        else:
            check_answer(engine, submit, aborted)
    event("preempted" if engine.core.stats.preemptions else "never preempted")
    event("cached" if engine.core.stats.cached_tokens else "nothing cached")
    event("aborted" if aborted else "never aborted")


@pytest.mark.parametrize("depth", [0, 1])
def test_classes_and_stops_under_pressure_lose_no_token(depth: int) -> None:
    engine = Engine(num_blocks=14, block_size=4, max_rows=4, depth=depth)
    for number, priority in enumerate([*PriorityClass] * 3):
        engine.submit(
            submission(
                f"r{number}",
                [number % VOCAB_SIZE] * 5,
                20,
                priority=priority,
                ignore_eos=False,
                temperature=1.0,
                seed=number,
                stop=("ab", "q"),
                tenant=f"t{number}",
            )
        )
    engine.run()
    engine.check_idle()
    assert engine.core.stats.preemptions > 0
    assert any(EOS in engine.tokens(name) or engine.reason(name) == "stop" for name in engine.submitted)
    for submit in engine.submitted.values():
        tokens, reason, _ = alone(submit)
        assert (engine.tokens(submit.request_id), engine.reason(submit.request_id)) == (tokens, reason)
