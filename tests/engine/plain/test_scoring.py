"""Prompts that are scored: each token once, from what a step computes, whatever happens to the request."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.protocol import PriorityClass, Usage
from tests.engine.plain.harness import Engine, adapter, alone, scored_of, submission

FLEX = PriorityClass.FLEX


@pytest.fixture(params=[0, 1], ids=["in turn", "overlapped"])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def score_steps(engine: Engine) -> list[tuple[int, int]]:
    """(first, how many) of every score a step was told to compute."""
    return [(share.first, share.num_tokens) for batch in engine.runner.batches for share in batch.scored]


# ---- ends and bills


@pytest.mark.parametrize("prompt_len", [1, 2, 4, 5, 16, 31])
def test_a_prompt_that_is_only_scored_ends_with_its_prefill(depth: int, prompt_len: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("r", list(range(prompt_len)), 0, prompt_logprobs=2))
    engine.run()
    engine.check_idle()
    assert engine.runner.num_steps == 1
    assert (engine.tokens("r"), engine.reason("r")) == ([], "length")
    assert engine.scores["r"] == scored_of(engine.submitted["r"])
    assert len(engine.scores["r"]) == prompt_len - 1
    finished, event = engine.finished["r"]
    assert finished.usage == Usage(prompt_len, 0, 0)
    assert (event.finish_reason, event.first_token_at) == ("length", None)
    assert engine.core.stats.completion_tokens == 0


def test_a_scored_prompt_goes_on_as_one_that_is_not(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("r", list(range(13)), 6, prompt_logprobs=0, logprobs=1))
    engine.run()
    engine.check_idle()
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]
    assert engine.scores["r"] == scored_of(engine.submitted["r"])
    assert engine.scores["r"][0].top == []


def test_chunk_by_chunk_each_token_is_scored_once(depth: int) -> None:
    engine = Engine(max_batch_tokens=8, max_rows=4, depth=depth)
    engine.submit(submission("decoding", [60], 30))
    engine.step()
    engine.submit(submission("r", list(range(30)), 2, prompt_logprobs=1))
    engine.run()
    engine.check_idle()
    assert score_steps(engine) == [(1, 7), (8, 7), (15, 7), (22, 7), (29, 1)]
    assert engine.scores["r"] == scored_of(engine.submitted["r"])


@pytest.mark.parametrize("score_from", [1, 5, 11, 12])
def test_scoring_begins_where_it_is_told(depth: int, score_from: int) -> None:
    engine = Engine(max_batch_tokens=8, max_rows=4, depth=depth)
    engine.submit(submission("r", list(range(12)), 1, prompt_logprobs=1, score_from=score_from))
    engine.run()
    engine.check_idle()
    assert len(engine.scores["r"]) == 12 - score_from
    assert engine.scores["r"] == scored_of(engine.submitted["r"])


def test_choices_share_one_scoring(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("r", list(range(10)), 3, n=3, temperature=1.0, prompt_logprobs=1))
    engine.run()
    engine.check_idle()
    assert score_steps(engine) == [(1, 9)]
    assert engine.scores["r"] == scored_of(engine.submitted["r"])
    assert [engine.tokens("r", index) for index in range(3)] == [
        alone(engine.submitted["r"], index)[0] for index in range(3)
    ]


def test_choices_of_a_prompt_that_is_only_scored_all_end_with_it(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("r", list(range(10)), 0, n=3, prompt_logprobs=1))
    engine.run()
    engine.check_idle()
    assert [engine.reason("r", index) for index in range(3)] == ["length"] * 3
    assert engine.finished["r"][0].usage == Usage(10, 0, 0)


# ---- the prefix cache


@pytest.mark.parametrize(
    ("score_from", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (17, 16)]
)
def test_a_prefix_is_reused_up_to_the_token_before_the_first_that_is_scored(
    depth: int, score_from: int, cached: int
) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("first", list(range(18)), 1))
    engine.run()
    engine.submit(submission("r", list(range(18)), 1, prompt_logprobs=1, score_from=score_from))
    engine.run()
    engine.check_idle()
    assert engine.finished["r"][0].usage.cached_tokens == cached
    assert engine.scores["r"] == scored_of(engine.submitted["r"])


def test_what_a_scored_prompt_computes_is_found_by_others(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.submit(submission("r", list(range(18)), 0, prompt_logprobs=1))
    engine.run()
    engine.submit(submission("next", list(range(18)), 2))
    engine.run()
    engine.check_idle()
    assert engine.finished["next"][0].usage.cached_tokens == 16


# ---- what befalls it


def test_preempted_in_its_prompt_it_goes_on_scoring_where_it_was(depth: int) -> None:
    """A higher class takes its blocks while its prompt is half computed."""
    engine = Engine(num_blocks=12, max_batch_tokens=8, max_rows=4, max_flex_tokens=1, depth=depth)
    engine.submit(submission("r", list(range(30)), 2, prompt_logprobs=1, priority=FLEX))
    engine.step()
    engine.step()
    engine.submit(submission("urgent", [50] * 4, 20, priority=PriorityClass.PRIORITY))
    engine.run()
    engine.check_idle()
    assert engine.core.stats.preemptions
    assert engine.finished["r"][1].preemptions
    firsts = [share.first for batch in engine.runner.batches for share in batch.scored]
    assert firsts == sorted(set(firsts)), "a token was scored twice"
    assert engine.scores["r"] == scored_of(engine.submitted["r"])
    assert engine.tokens("r") == alone(engine.submitted["r"])[0]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_aborted_in_its_prompt_it_tells_nothing_more(depth: int, num_steps: int) -> None:
    engine = Engine(max_batch_tokens=8, max_rows=4, depth=depth)
    engine.submit(submission("r", list(range(40)), 0, prompt_logprobs=1))
    for _ in range(num_steps):
        engine.step()
    told = engine.scores["r"].copy()
    engine.core.abort("r")
    engine.run()
    engine.check_idle()
    assert engine.reason("r") == "abort"
    assert engine.scores["r"] == told == scored_of(engine.submitted["r"])[: len(told)]
    assert len(told) == 8 * (num_steps - depth)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("n", [1, 2])
def test_scores_that_are_not_finite_end_the_request_alone(depth: int, max_tokens: int, n: int) -> None:
    engine = Engine(max_batch_tokens=8, max_rows=4, depth=depth)
    bad = list(range(20))
    engine.runner.fail_scores.add(tuple(bad))
    engine.submit(submission("bad", bad, max_tokens, prompt_logprobs=1, n=n))
    engine.submit(submission("good", [9, 8, 7], 5, prompt_logprobs=1))
    engine.run()
    engine.check_idle()
    assert engine.reason("bad") == "error"
    assert not engine.scores["bad"]
    assert engine.tokens("good") == alone(engine.submitted["good"])[0]
    assert engine.scores["good"] == scored_of(engine.submitted["good"])
    engine.submit(submission("next", bad, 2))
    engine.run()
    assert engine.finished["next"][0].usage.cached_tokens == 0, "its blocks are not to be trusted"


def test_the_last_logits_not_being_finite_end_a_scored_prompt_too(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.runner.fail_prompts.add((1, 2, 3))
    engine.submit(submission("r", [1, 2, 3], 0, prompt_logprobs=1, n=2))
    engine.run()
    engine.check_idle()
    assert [engine.reason("r", index) for index in range(2)] == ["error", "error"]


def test_adapters_score_apart(depth: int) -> None:
    engine = Engine(num_slots=2, depth=depth)
    for number, ref in enumerate([None, adapter("a"), adapter("b"), adapter("c")]):
        engine.submit(submission(f"r{number}", list(range(20)), 0, adapter=ref, prompt_logprobs=1))
    engine.run()
    engine.check_idle()
    found = [engine.scores[f"r{number}"] for number in range(4)]
    assert found == [scored_of(engine.submitted[f"r{number}"]) for number in range(4)]
    assert len({scores[5].logprob for scores in found}) == 4


# ---- FLEX yields


def flex_tokens(engine: Engine) -> list[int]:
    """By step, tokens computed for requests named "flex...". Rows are known from when they entered."""
    names: dict[int, str] = {}
    found = []
    for batch in engine.runner.batches:
        names |= {new.row: new.request_id for new in batch.new_rows}
        mine = [share.num_tokens for share in batch.scheduled if names[share.row].startswith("flex")]
        found.append(sum(mine))
    return found


def flood(engine: Engine, num: int = 6) -> None:
    for number in range(num):
        prompt_ids = [number, *range(30)]
        engine.submit(submission(f"flex{number}", prompt_ids, 0, prompt_logprobs=1, priority=FLEX))


def test_beside_a_higher_class_flex_prompts_take_their_share_and_no_more(depth: int) -> None:
    engine = Engine(num_blocks=200, max_flex_tokens=5, depth=depth)
    engine.submit(submission("decoding", [60, 61], 40))
    engine.step()
    flood(engine)
    engine.run()
    engine.check_idle()
    # A row's last token counts as any row's one: 6 where it comes beside a share.
    assert set(flex_tokens(engine)[1:30]) == {5, 6}, "never more, and never starved"
    assert engine.tokens("decoding") == alone(engine.submitted["decoding"])[0]
    for number in range(6):
        assert engine.scores[f"flex{number}"] == scored_of(engine.submitted[f"flex{number}"])


def test_beside_a_higher_class_flex_prompts_take_their_share_in_one_of_many_steps(depth: int) -> None:
    engine = Engine(num_blocks=200, max_flex_tokens=20, flex_interval=8, depth=depth)
    engine.submit(submission("decoding", [60, 61], 40))
    engine.step()
    flood(engine)
    engine.run()
    engine.check_idle()
    tokens = flex_tokens(engine)[1:40]
    busy = [step for step, num_tokens in enumerate(tokens) if num_tokens > 2]
    assert busy, "never starved"
    assert {after - before for before, after in pairwise(busy)} == {8}
    assert max(tokens) <= 22, "a share, and the last token of rows beside it"
    for number in range(6):
        assert engine.scores[f"flex{number}"] == scored_of(engine.submitted[f"flex{number}"])


def test_on_their_own_flex_prompts_take_all(depth: int) -> None:
    engine = Engine(num_blocks=200, max_flex_tokens=5, depth=depth)
    flood(engine)
    engine.run()
    engine.check_idle()
    assert flex_tokens(engine)[0] == 32


def test_a_higher_class_that_waits_finds_room_at_once(depth: int) -> None:
    """FLEX prompts under way leave it the step, not what they happen not to need."""
    engine = Engine(num_blocks=200, max_flex_tokens=5, depth=depth, max_batch_tokens=16)
    flood(engine)
    engine.step()
    engine.submit(submission("urgent", [60, 61, 62], 2))
    before = engine.runner.num_steps
    engine.step()
    assert "urgent" in engine.runner.entered
    assert flex_tokens(engine)[before] == 5
    engine.run()
    engine.check_idle()


def test_rows_of_flex_prompts_already_under_way_each_go_on(depth: int) -> None:
    """More of them than their share has tokens: one each. The strict runner fails on a row left out."""
    engine = Engine(num_blocks=200, max_flex_tokens=1, depth=depth, max_batch_tokens=8, max_rows=8)
    for number in range(4):
        engine.submit(submission(f"flex{number}", [number], 20, priority=FLEX))
    engine.submit(submission("flex-long", list(range(30)), 0, prompt_logprobs=1, priority=FLEX))
    engine.step()
    engine.submit(submission("other", [60], 9))
    engine.run()
    engine.check_idle()
    assert engine.scores["flex-long"] == scored_of(engine.submitted["flex-long"])
