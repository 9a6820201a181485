"""The scheduler case by case: shares, prefixes, preemption, choices, ends, the bill."""

from __future__ import annotations

import pytest

from engine.batch import Scheduled, StepResult
from engine.protocol import PriorityClass, Usage
from engine.scheduling.request_tracker import CHECKPOINT_TOKENS
from tests.engine.plain.harness import EOS, TOKEN_BYTES, Engine, adapter, alone, submission

PRIORITY, DEFAULT, FLEX = PriorityClass


# ---- shares of a step


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    engine = Engine(max_batch_tokens=8, max_rows=4)
    engine.submit(submission("short", [1, 2], 12))
    engine.step()
    engine.submit(submission("long", list(range(20)), 2))
    batch = engine.scheduler.schedule()
    assert batch is not None
    assert batch.scheduled == [Scheduled(0, 1, True), Scheduled(1, 7, False)]
    engine.record(engine.scheduler.commit(batch, engine.runner.execute(batch)))
    engine.run()
    engine.check_idle()
    assert engine.tokens("long") == alone(engine.submitted["long"])[0]


def test_every_running_row_progresses_in_every_step_however_long_a_prompt_is() -> None:
    """The strict runner fails on a row left out."""
    engine = Engine(max_batch_tokens=8, max_rows=8, num_blocks=200)
    for number in range(8):
        engine.submit(submission(f"r{number}", [number] * 30, 10))
    engine.run()
    engine.check_idle()


def test_no_more_rows_than_allowed_run() -> None:
    engine = Engine(max_rows=3)
    for number in range(10):
        engine.submit(submission(f"r{number}", [1, 2], 5))
    most = 0
    while engine.core.has_work:
        engine.step()
        most = max(most, engine.core.stats.running)
    assert most == 3
    engine.check_idle()


# ---- prefix cache


def test_a_second_request_with_the_same_beginning_computes_only_the_rest() -> None:
    engine = Engine()
    engine.submit(submission("first", list(range(12)), 3))
    engine.run()
    engine.submit(submission("second", [*range(10), 50, 51], 3))
    engine.run()
    engine.check_idle()
    assert engine.finished["first"][0].usage.cached_tokens == 0
    assert engine.finished["second"][0].usage.cached_tokens == 8
    stats = engine.core.stats
    assert (stats.prompt_tokens, stats.cached_tokens) == (24, 8)


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation() -> None:
    engine = Engine()
    engine.submit(submission("first", list(range(6)), 7))
    engine.run()
    engine.submit(submission("next", [*range(6), *engine.tokens("first"), 9], 2))
    engine.run()
    # All 13 tokens but the last generated one were computed: three blocks of four.
    assert engine.finished["next"][0].usage.cached_tokens == 12


@pytest.mark.parametrize(
    "other",
    [{"tenant": "bolt"}, {"adapter": adapter("b")}, {"adapter": None}, {"tenant": "bolt", "adapter": None}],
)
def test_another_tenant_or_adapter_is_never_a_hit(other: dict[str, object]) -> None:
    engine = Engine()
    engine.submit(submission("first", list(range(12)), 3, **{"tenant": "acme", "adapter": adapter("a")}))
    engine.run()
    fields = {"tenant": "acme", "adapter": adapter("a"), **other}
    engine.submit(submission("other", list(range(12)), 3, **fields))
    engine.run()
    assert engine.finished["other"][0].usage.cached_tokens == 0


# ---- preemption


def full_house(*priorities: PriorityClass) -> Engine:
    """Requests that all start, and then need more blocks than there are."""
    engine = Engine(num_blocks=13, block_size=4)
    for number, priority in enumerate(priorities):
        engine.submit(submission(f"r{number}", [number] * 6, 30, priority=priority, tenant=f"t{number}"))
    return engine


def preempted(engine: Engine) -> list[str]:
    return [name for name, (_, event) in engine.finished.items() if event.preemptions]


def test_the_last_arrived_is_preempted_and_loses_nothing() -> None:
    engine = full_house(DEFAULT, DEFAULT)
    engine.run()
    engine.check_idle()
    assert preempted(engine) == ["r1"]
    for request_id, submit in engine.submitted.items():
        assert engine.tokens(request_id) == alone(submit)[0]
    assert engine.core.stats.preemptions == engine.finished["r1"][1].preemptions >= 1


def test_the_lowest_class_is_preempted_first() -> None:
    engine = full_house(FLEX, DEFAULT)
    engine.run()
    assert preempted(engine) == ["r0"]


def test_a_preempted_request_returns_before_newcomers() -> None:
    engine = full_house(DEFAULT, DEFAULT)
    engine.run(until=lambda: engine.core.stats.preemptions > 0)
    engine.submit(submission("newcomer", [9] * 6, 2, tenant="new"))
    engine.run()
    engine.check_idle()
    assert engine.finished["r1"][1].finish_reason == "length"
    assert engine.runner.entered == ["r0", "r1", "r1", "newcomer"]
    assert engine.finished["r1"][0].usage.cached_tokens == 0, "only the first admission counts"


def test_a_request_that_fits_alone_always_ends() -> None:
    engine = Engine(num_blocks=12, block_size=4)
    for number in range(6):
        engine.submit(submission(f"r{number}", [number] * 9, 34))
    engine.run()
    engine.check_idle()
    for request_id, submit in engine.submitted.items():
        assert engine.tokens(request_id) == alone(submit)[0]


# ---- choices


def test_choices_differ_by_seed_and_share_the_prompt() -> None:
    engine = Engine()
    engine.submit(submission("r", list(range(13)), 5, n=4, temperature=1.0, seed=11))
    engine.step()
    assert engine.core.stats.running == 1, "the others wait for the first one's prompt"
    engine.run()
    engine.check_idle()
    answers = [tuple(engine.tokens("r", index)) for index in range(4)]
    assert answers == [tuple(alone(engine.submitted["r"], index)[0]) for index in range(4)]
    assert len(set(answers)) == 4
    finished, event = engine.finished["r"]
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (13, 20)
    assert finished.usage.cached_tokens == 0, "the siblings' hits are not the prompt's"
    assert event.n == 4


def test_siblings_compute_only_what_the_leader_left() -> None:
    engine = Engine(max_batch_tokens=16)
    engine.submit(submission("r", list(range(16)), 3, n=3))
    engine.step()
    batch = engine.scheduler.schedule()
    assert batch is not None
    assert [new.computed_len for new in batch.new_rows] == [12, 12]
    engine.scheduler.commit(batch, engine.runner.execute(batch))
    engine.run()


def test_choices_that_end_differently_are_journaled_in_order() -> None:
    engine = Engine()
    submit = submission("r", [1, 2, 3], 40, n=3, temperature=1.0, seed=3, ignore_eos=False)
    expected = [alone(submit, index)[1] for index in range(3)]
    assert len(set(expected)) == 2, "the seed should give both endings"
    engine.submit(submit)
    engine.run()
    engine.check_idle()
    assert engine.finished["r"][1].finish_reason == ",".join(expected)


def test_without_a_seed_one_is_drawn_for_the_request() -> None:
    engine = Engine()
    engine.submit(submission("r", [1, 2], 5, n=2, temperature=1.0, seed=None))
    engine.run()
    assert [engine.tokens("r", index) for index in range(2)] == [
        alone(engine.submitted["r"], index)[0] for index in range(2)
    ]


@pytest.mark.parametrize("seed", [-1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_gives_non_negative_row_seeds(seed: int) -> None:
    engine = Engine()
    engine.submit(submission("r", [1, 2, 3], 2, seed=seed, temperature=1.0, n=2))
    seeds = []
    while (batch := engine.scheduler.schedule()) is not None:
        seeds += [new.seed for new in batch.new_rows]
        engine.scheduler.commit(batch, engine.runner.execute(batch))
    assert len(seeds) == 2
    assert all(0 <= row_seed < 2**63 for row_seed in seeds)


# ---- ends


def greedy(prompt_ids: list[int], num_tokens: int = 40) -> list[int]:
    return alone(submission("x", prompt_ids, num_tokens))[0]


def prompt_reaching_eos() -> tuple[list[int], int]:
    """A prompt after which the end of sequence is drawn, and after how many tokens."""
    for first in range(40):
        tokens = greedy([first])
        if EOS in tokens[3:]:
            return [first], tokens.index(EOS, 3)
    raise AssertionError("no prompt reaches the end of sequence")


def test_the_end_of_sequence_is_emitted_billed_and_not_reported_as_a_stop() -> None:
    prompt_ids, place = prompt_reaching_eos()
    engine = Engine()
    engine.submit(submission("r", prompt_ids, 50, ignore_eos=False, min_tokens=place))
    engine.run()
    engine.check_idle()
    assert engine.tokens("r")[-1] == EOS
    assert (engine.reason("r"), engine.chunks["r"][0][-1].stop) == ("stop", None)
    assert engine.finished["r"][0].usage.completion_tokens == place + 1


def test_nothing_stops_before_min_tokens() -> None:
    prompt_ids, place = prompt_reaching_eos()
    expected = greedy(prompt_ids)
    engine = Engine()
    letter = TOKEN_BYTES[expected[0]].decode()
    engine.submit(
        submission(
            "r",
            prompt_ids,
            40,
            ignore_eos=False,
            min_tokens=place + 2,
            stop=(letter,),
            stop_token_ids=tuple(expected[:2]),
        )
    )
    engine.run()
    assert len(engine.tokens("r")) >= place + 2
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]


def test_a_stop_token_is_reported() -> None:
    expected = greedy([4, 5])
    engine = Engine()
    engine.submit(submission("r", [4, 5], 40, stop_token_ids=(expected[2],)))
    engine.run()
    last = engine.chunks["r"][0][-1]
    assert (last.finish_reason, last.stop) == ("stop", expected[2])
    assert last.token_ids == [expected[2]]


def test_a_stop_string_across_tokens_is_reported_and_its_tokens_are_given() -> None:
    expected = greedy([4, 5])
    stop = b"".join(TOKEN_BYTES[token_id] for token_id in expected[1:4]).decode()
    engine = Engine()
    engine.submit(submission("r", [4, 5], 40, stop=("never", stop)))
    engine.run()
    last = engine.chunks["r"][0][-1]
    assert (last.finish_reason, last.stop) == ("stop", stop)
    assert engine.tokens("r") == expected[:4]


def test_logprobs_come_with_their_tokens_only_when_asked_for() -> None:
    engine = Engine()
    engine.submit(submission("with", [1], 3, logprobs=2))
    engine.submit(submission("without", [1], 3))
    engine.run()
    for chunk in engine.chunks["with"][0]:
        assert chunk.logprobs is not None
        assert [entry.token_id for entry in chunk.logprobs] == chunk.token_ids
        assert len(chunk.logprobs[0].top) == 2
    assert all(chunk.logprobs is None for chunk in engine.chunks["without"][0])


def test_a_failed_row_ends_alone_and_leaves_nothing_in_the_cache() -> None:
    engine = Engine(
        max_batch_tokens=8
    )  # the prompts are computed in parts, so that some blocks are named before
    poisoned, healthy = list(range(12)), list(range(20, 32))
    engine.runner.fail_prompts.add(tuple(poisoned))
    engine.submit(submission("poisoned", poisoned, 4, n=2))
    engine.submit(submission("healthy", healthy, 4))
    engine.run()
    engine.check_idle()
    assert engine.finished["poisoned"][1].finish_reason == "error"
    assert engine.finished["poisoned"][0].usage.completion_tokens == 0
    assert [engine.reason("poisoned", index) for index in range(2)] == ["error", "error"]
    assert engine.tokens("healthy") == greedy(healthy, 4)
    assert engine.core.stats.errors == 2
    engine.runner.fail_prompts.clear()
    engine.submit(submission("again", poisoned, 4))
    engine.run()
    assert engine.finished["again"][0].usage.cached_tokens == 0
    assert engine.tokens("again") == greedy(poisoned, 4)


# ---- abort


def test_a_waiting_request_is_aborted() -> None:
    engine = Engine(max_rows=1)
    engine.submit(submission("running", [1], 5))
    engine.submit(submission("waiting", [2], 5))
    engine.step()
    engine.core.abort("waiting")
    assert engine.core.stats.waiting[DEFAULT.value] == 0
    engine.run()
    engine.check_idle()
    finished, event = engine.finished["waiting"]
    assert (event.finish_reason, event.scheduled_at) == ("abort", None)
    assert finished.usage == Usage(0, 0, 0), "nothing was done for it"
    assert engine.core.stats.aborted == 1


def test_a_running_request_is_aborted_with_all_its_choices_and_billed_for_what_it_got() -> None:
    engine = Engine()
    engine.submit(submission("r", [1, 2, 3], 30, n=3, adapter=adapter("a")))
    for _ in range(4):
        engine.step()
    engine.core.abort("r")
    stats = engine.core.stats
    assert (stats.running, stats.blocks_used) == (0, 0)
    engine.run()
    engine.check_idle()
    assert engine.finished["r"][1].finish_reason == "abort"
    assert engine.finished["r"][0].usage.completion_tokens > 0


def test_choices_not_begun_are_aborted_too() -> None:
    engine = Engine(max_batch_tokens=8, max_rows=2)
    engine.submit(submission("r", list(range(20)), 5, n=3))
    engine.step()
    engine.core.abort("r")
    engine.step()
    engine.check_idle()
    assert [engine.reason("r", index) for index in range(3)] == ["abort"] * 3


def test_an_abort_while_the_step_runs_is_settled_by_its_commit() -> None:
    engine = Engine()
    engine.submit(submission("gone", [1, 2], 9))
    engine.submit(submission("stays", [3, 4], 3))
    batch = engine.scheduler.schedule()
    assert batch is not None
    result = engine.runner.execute(batch)
    engine.scheduler.abort("gone")
    outputs = engine.scheduler.commit(batch, result)
    assert [(chunk.request_id, chunk.finish_reason) for chunk in outputs.chunks] == [
        ("gone", "abort"),
        ("stays", None),
    ]
    assert outputs.finished[0][0].usage.completion_tokens == 0
    engine.scheduler.check_integrity()


def test_unknown_and_finished_ids_are_ignored() -> None:
    engine = Engine()
    engine.submit(submission("r", [1], 2))
    engine.run()
    engine.core.abort("r")
    engine.core.abort("never")
    assert not engine.core.has_work


def test_a_freed_row_is_handed_on_only_with_news_of_its_freeing() -> None:
    engine = Engine(max_rows=1)
    engine.submit(submission("first", [1], 5))
    engine.submit(submission("second", [2], 5))
    engine.step()
    engine.core.abort("first")
    batch = engine.scheduler.schedule()
    assert batch is not None
    assert batch.freed_rows == [0]
    assert [new.row for new in batch.new_rows] == [0]
    engine.scheduler.commit(batch, engine.runner.execute(batch))


def test_one_batch_may_be_planned_over_another_and_no_more() -> None:
    engine = Engine()
    engine.submit(submission("r", [1], 5))
    first, second = engine.scheduler.schedule(), engine.scheduler.schedule()
    assert first is not None
    assert second is not None
    with pytest.raises(AssertionError, match="not committed"):
        engine.scheduler.schedule()
    with pytest.raises(AssertionError, match="in the order they were planned"):
        engine.scheduler.commit(second, StepResult([0]))


def test_a_runner_that_draws_too_little_is_caught() -> None:
    engine = Engine()
    engine.submit(submission("r", [1], 5))
    batch = engine.scheduler.schedule()
    assert batch is not None
    with pytest.raises((AssertionError, IndexError)):
        engine.scheduler.commit(batch, StepResult([]))


# ---- the journal


def test_long_answers_are_checkpointed() -> None:
    engine = Engine(context_length=2000, num_blocks=600)
    engine.submit(submission("r", [1, 2], 600, labels={"key": "k1"}))
    engine.run()
    counts = [event.usage.completion_tokens for event in engine.checkpoints]
    assert counts == [CHECKPOINT_TOKENS, 2 * CHECKPOINT_TOKENS]
    for event in engine.checkpoints:
        assert event.finish_reason is None
        assert event.finished_at is None
        assert event.labels == {"key": "k1"}
    last = engine.finished["r"][1]
    assert last.usage.completion_tokens == 600
    assert last.submitted_at == engine.checkpoints[0].submitted_at == 1000.0


def test_an_event_says_who_what_and_when() -> None:
    engine = Engine(auto_load=False)
    ref = adapter("a")
    engine.submit(submission("r", [1, 2], 3, adapter=ref, priority=FLEX, tenant="bolt"))
    engine.now = 6000.0
    engine.step()
    engine.finish_load()
    engine.now = 6001.0
    engine.step()
    engine.now = 6002.0
    engine.step()
    engine.now = 6003.0
    engine.step()
    event = engine.finished["r"][1]
    assert (event.engine_id, event.incarnation, event.tenant) == ("engine-0", "first", "bolt")
    assert (event.priority, event.adapter_digest) == (FLEX, ref.digest)
    assert (event.scheduled_at, event.first_token_at, event.finished_at) == (6001.0, 6001.0, 6003.0)
    assert (event.recorded_at, event.finish_reason, event.preemptions) == (6003.0, "length", 0)
