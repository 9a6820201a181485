"""A whole engine that drafts from texts: the same answers in fewer steps, and tenants that do not notice one
another."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.forced_acceptance import Process, SyntheticTexts
from engine.batch import MAX_DRAFTS
from engine.speculation.loss_limit import FIRST
from engine.speculation.mixed_drafter import MAX_ROWS, TOKENS_AT_ONCE, MixedDrafter, _Candidate
from engine.speculation.suffixes import Guess
from engine.speculation.texts import OpenText, Texts
from tests.engine.plain.harness import Engine, adapter, alone, submission

ADAPTERS = [adapter(name) for name in "abcd"]


def engine_with_drafts(depth: int = 0, **options: int) -> Engine:
    """Its clock passes by steps, which take as long with drafts as without."""
    engine: Engine
    engine = Engine(
        depth=depth,
        drafter=MixedDrafter(lambda: float(engine.runner.num_steps)),
        **{"max_rows": 64, "max_batch_tokens": 128, "num_blocks": 400, "context_length": 200, **options},
    )
    return engine


def run(engine: Engine, name: str, tenant: str, *, rows: int = 2, tokens: int = 60) -> int:
    """Returns the steps it took."""
    before = engine.runner.num_steps
    for row in range(rows):
        submit = submission(f"{name}{row}", [7, row, 9], tokens, tenant=tenant, adapter=ADAPTERS[row % 4])
        assert engine.submit(submit) is None
    while engine.core.has_work:
        engine.now += 1.0
        engine.step()
    for row in range(rows):
        assert engine.tokens(f"{name}{row}", 0) == alone(engine.submitted[f"{name}{row}"])[0]
    engine.check_idle()
    return engine.runner.num_steps - before


@pytest.mark.parametrize("depth", [0, 1])
def test_answers_that_come_again_take_fewer_steps(depth: int) -> None:
    engine = engine_with_drafts(depth)
    first = run(engine, "first", "acme")
    assert first >= 60
    assert run(engine, "second", "acme") < 30
    assert engine.runner.num_accepted > 60
    stats = engine.core.stats
    assert 60 < stats.accepted_tokens <= stats.drafted_tokens
    assert stats.completion_tokens == 240, "drafts that were refused are not billed"
    slots = engine.core.view(stats).slots
    assert sum(slot.drafted_tokens for slot in slots) == stats.drafted_tokens
    assert sum(slot.accepted_tokens for slot in slots) == stats.accepted_tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_another_tenants_texts_change_neither_drafts_nor_steps(depth: int) -> None:
    quiet, noisy = engine_with_drafts(depth), engine_with_drafts(depth)
    for number in range(3):
        run(noisy, f"other{number}", "bolt")
    drafted = noisy.runner.num_drafts, noisy.runner.num_accepted
    assert drafted[1] > 0
    assert run(noisy, "mine", "acme") == run(quiet, "mine", "acme")
    assert (noisy.runner.num_drafts, noisy.runner.num_accepted) == drafted
    assert quiet.runner.num_drafts == 0


def test_drafts_are_counted_by_tenant_on_an_adapter_of_both() -> None:
    engine = engine_with_drafts()
    for number in range(3):
        run(engine, f"much{number}", "acme", rows=1)
    run(engine, "little", "bolt", rows=1)
    run(engine, "more", "bolt", rows=1)
    view = engine.core.view(engine.core.stats)
    counts = {one.tenant: one for one in view.drafts}
    assert len(view.drafts) == 2
    assert {one.digest for one in view.drafts} == {ADAPTERS[0].digest}
    assert counts["acme"].accepted_tokens > counts["bolt"].accepted_tokens > 0
    (slot,) = view.slots
    assert slot.drafted_tokens == counts["acme"].drafted_tokens + counts["bolt"].drafted_tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_guesses_that_are_always_wrong_cost_less_than_two_percent(depth: int) -> None:
    """A token costs a tenth of a step's other work; wrong guesses look as good as guesses can."""
    engine: Engine

    def seconds() -> float:
        return sum(1.0 + 0.1 * batch.num_tokens for batch in engine.runner.batches)

    drafter = MixedDrafter(seconds, SyntheticTexts(Process(8, 0.5)))
    engine = Engine(depth=depth, drafter=drafter, max_rows=64, max_batch_tokens=128, num_blocks=900,
                    context_length=600)  # fmt: skip
    run(engine, "warm", "other", rows=4, tokens=40)
    before, drafts = seconds(), engine.runner.num_drafts
    without = 0.0
    for tenant in range(12):  # of none is anything known at first
        run(engine, f"t{tenant}-", f"tenant{tenant}", rows=4, tokens=100)
        without += 100 * 1.0 + 0.1 * (4 * 100 + 12)
    assert engine.runner.num_drafts > drafts
    assert seconds() - before < 1.02 * without


@pytest.mark.parametrize(("depth", "most"), [(0, 0), (1, MAX_DRAFTS + 1)])
def test_texts_are_looked_into_up_to_the_last_step_at_least(
    depth: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with_drafts(depth)
    run(engine, "first", "acme")
    behind = []
    guess = OpenText.guess

    def noted(opened: OpenText, num: int) -> Guess:
        behind.append(len(opened.text.token_ids) - opened.text.num_indexed)
        return guess(opened, num)

    monkeypatch.setattr(OpenText, "guess", noted)
    run(engine, "second", "acme")
    assert len(behind) > 10
    assert max(behind) <= most


def test_no_more_than_half_of_a_balance_is_staked() -> None:
    """Else one refused draft in the beginning would leave a tenant without any for a hundred tokens."""
    drafter = MixedDrafter(lambda: 0.0)
    engine = Engine(drafter=drafter)
    engine.submit(submission("r", [1, 2, 3], 12))
    engine.step()
    engine.step()
    [request] = drafter._followed
    candidate = _Candidate(request, 2, [1] * 10, [0.9] * 10)
    num_drafts = [drafter._affordable(candidate, FIRST / part) - 2 for part in (8.1, 4.1, 2.1, 1.1, 0.9)]
    assert num_drafts == [4, 2, 1, 1, 0], "the last one may be all of it"


def test_a_large_batch_gets_no_drafts() -> None:
    engine = engine_with_drafts(max_rows=64, num_blocks=2000)
    run(engine, "first", "acme", rows=MAX_ROWS + 1, tokens=20)
    run(engine, "second", "acme", rows=MAX_ROWS + 1, tokens=20)
    assert engine.runner.num_accepted == 0


def test_the_device_does_not_wait_while_the_last_tokens_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_drafts(depth=1)
    run(engine, "first", "acme", rows=1)
    learnt: list[tuple[bool, int]] = []
    extend = Texts.extend

    def noted(texts: Texts, opened: OpenText, most: int) -> int:
        num = extend(texts, opened, most)
        learnt.append((bool(engine.core._in_flight), num))
        return num

    monkeypatch.setattr(Texts, "extend", noted)
    run(engine, "second", "acme", rows=1)
    assert engine.runner.num_accepted > 20
    *before, _ = learnt  # the last ones when the request ends
    few = [in_flight for in_flight, num in before if num < TOKENS_AT_ONCE]
    assert len(few) > 5
    assert all(few)


@pytest.mark.parametrize("depth", [0, 1])
def test_nothing_is_learnt_of_a_large_batch(depth: int) -> None:
    drafter = MixedDrafter(lambda: 0.0)
    engine = Engine(depth=depth, drafter=drafter, max_rows=64, max_batch_tokens=256, num_blocks=2000)
    for row in range(MAX_ROWS + 1):
        engine.submit(submission(f"r{row}", [7, row % 9, 9], 20))
    for _ in range(5):
        engine.step()
    assert engine.core.scheduler.num_running == MAX_ROWS + 1
    assert not drafter._followed


def test_requests_that_end_leave_nothing_but_their_texts() -> None:
    drafter = MixedDrafter(lambda: 0.0)
    engine = Engine(drafter=drafter)
    random = Random(4)
    for number in range(12):
        engine.submit(submission(f"r{number}", [random.randrange(9) for _ in range(9)], 12))
        if random.random() < 0.3:
            engine.step()
            engine.core.abort(f"r{number}")
    while engine.core.has_work:
        engine.step()
    assert not drafter._followed
