"""Drafts change how many steps a request takes, and nothing else: not its tokens, nor its bill, nor what is
held."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.protocol import Submit
from engine.request import Request
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.plain.harness import VOCAB_SIZE, Engine, adapter, alone, submission
from tests.engine.plain.strict_runner import PLACEHOLDER_ID
from tests.engine.plain.test_scheduler_properties import ADAPTERS, check_answer, submissions
from tests.support.examples import examples

DRAFT_ADAPTERS = DraftAdapterChoice(
    DraftAdapter(adapter("guesses for all"), PLACEHOLDER_ID, 3),
    {ADAPTERS[0].digest: DraftAdapter(adapter("guesses for one"), PLACEHOLDER_ID, 2)},
)


def answer(request: Request) -> list[int]:
    return alone(request.group.submit, request.index)[0]


def knowing(random: Random, **options: float) -> GuessingDrafter:
    return GuessingDrafter(answer, random, vocab_size=VOCAB_SIZE, **options)  # type: ignore[arg-type]


def run(engine: Engine) -> None:
    while engine.core.has_work:
        engine.now += 1.0
        engine.step()
    engine.check_idle()


def test_the_step_behind_drafts_is_launched_before_their_results_are_given_out() -> None:
    engine = Engine(depth=1, num_blocks=200, drafter=knowing(Random(1), skill=0.9))
    for number in range(3):
        engine.submit(submission(f"r{number}", [number, 5], 40))
    num_tokens, longest = 0, 0
    while engine.core.has_work:
        outputs = engine.step()
        num_tokens += sum(len(chunk.token_ids) for chunk in outputs.chunks)
        longest = max(longest, *(len(chunk.token_ids) for chunk in outputs.chunks), 0)
        assert not outputs.chunks or engine.core._in_flight or not engine.scheduler.has_requests
    assert num_tokens == 120
    assert longest > 4, "the tokens of a row come in one chunk"
    assert engine.runner.num_accepted > 40
    engine.check_idle()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(submissions("r"), min_size=1, max_size=12),
    num_blocks=st.integers(13, 30),
    max_rows=st.integers(2, 24),
    max_batch_tokens=st.integers(24, 60),
    depth=st.integers(0, 1),
    skill=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    ahead=st.sampled_from([0, 0, 3]),
    num_slots=st.integers(2, 4),
    random=st.integers(0, 2**32).map(Random),
)
def test_any_load_with_drafts_is_served_as_if_each_were_alone(
    requests: list[Submit],
    num_blocks: int,
    max_rows: int,
    max_batch_tokens: int,
    depth: int,
    skill: float,
    ahead: int,
    num_slots: int,
    random: Random,
) -> None:
    drafter = knowing(random, skill=skill, ahead=ahead)
    engine = Engine(
        num_blocks=num_blocks,
        num_slots=num_slots,
        draft_adapters=DRAFT_ADAPTERS,
        auto_load=False,
        max_rows=max_rows,
        max_batch_tokens=max_batch_tokens,
        max_waiting=1000,
        depth=depth,
        drafter=drafter,
    )
    coming = [
        msgspec.structs.replace(submit, request_id=f"r{number}") for number, submit in enumerate(requests)
    ]
    aborted: set[str] = set()
    while coming or engine.core.has_work or engine.loads:
        action = random.random()
        if coming and action < 0.3:
            assert engine.submit(coming.pop()) is None
        elif engine.loads and (action < 0.5 or not engine.core.has_work):
            engine.finish_load()
        elif action < 0.51:
            engine.abort_one(random, aborted)
        else:
            engine.now += 1.0
            engine.step()
    engine.check_idle()
    for submit in engine.submitted.values():
        check_answer(engine, submit, aborted)
    total = sum(finished.usage.completion_tokens for finished, _ in engine.finished.values())
    given_out = sum(
        len(chunk.token_ids)
        for choices in engine.chunks.values()
        for chunks in choices.values()
        for chunk in chunks
    )
    assert total == given_out == engine.core.stats.completion_tokens
    event("preempted" if engine.core.stats.preemptions else "never preempted")
    event("accepted" if drafter.num_accepted else "nothing accepted")
    event("guessed" if drafter.num_guesses else "nothing guessed")


@pytest.mark.parametrize("depth", [0, 1])
def test_right_drafts_save_steps_and_wrong_ones_cost_none(depth: int) -> None:
    steps = {}
    for skill in (0.0, 1.0):
        engine = Engine(depth=depth, max_rows=32, drafter=knowing(Random(3), skill=skill))
        for number in range(3):
            engine.submit(submission(f"r{number}", [1, 2, number], 30))
        run(engine)
        steps[skill] = engine.runner.num_steps
    assert steps[0.0] <= 31
    assert steps[1.0] < 16


def test_an_engine_without_room_for_more_draws_drafts_nothing() -> None:
    drafter = knowing(Random(3))
    engine = Engine(max_rows=3, drafter=drafter)
    for number in range(3):
        engine.submit(submission(f"r{number}", [1, 2, number], 12))
    run(engine)
    assert drafter.num_drafts == 0


@pytest.mark.parametrize("ahead", [0, 3])
def test_nobody_is_preempted_for_drafts(ahead: int) -> None:
    without, with_drafts = (
        Engine(num_blocks=9, max_rows=24, drafter=drafter, draft_adapters=DRAFT_ADAPTERS)
        for drafter in (None, knowing(Random(3), skill=0.5, ahead=ahead))
    )
    for engine in (without, with_drafts):
        for number in range(2):
            engine.submit(submission(f"r{number}", [1, 2, number], 13))
        run(engine)
    assert without.core.stats.preemptions == with_drafts.core.stats.preemptions == 0
    assert with_drafts.runner.num_accepted
    assert bool(with_drafts.runner.num_guesses) == bool(ahead)


def test_a_request_that_fails_behind_its_drafts_keeps_the_tokens_before() -> None:
    engine = Engine(max_rows=24, drafter=knowing(Random(3), skill=1.0))
    engine.runner.fail_prompts.add((1, 2, 3))
    engine.submit(submission("bad", [1, 2, 3], 12))
    engine.submit(submission("good", [1, 2, 4], 12))
    run(engine)
    assert engine.chunks["bad"][0][-1].finish_reason == "error"
    assert engine.tokens("good", 0) == alone(engine.submitted["good"])[0]
