"""Draft adapters guess in the places of placeholders: more tokens per step, and nothing else changes. They
have slots like other adapters, and make way for those in demand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.protocol import AdapterRef, PriorityClass
from engine.scheduling.draft_adapters import IDLE_SECONDS, PAUSE_SECONDS
from engine.speculation.mixed_drafter import MAX_ROWS, MixedDrafter
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.plain.harness import VOCAB_SIZE, Engine, adapter, alone, submission
from tests.engine.plain.strict_runner import PLACEHOLDER_ID

GENERAL = DraftAdapter(adapter("general"), PLACEHOLDER_ID, 4)
OWN = DraftAdapter(adapter("own"), PLACEHOLDER_ID, 2)
ADAPTERS = [adapter(name) for name in "abcd"]
ROOMY: dict[str, Any] = {
    "max_rows": 64,
    "max_batch_tokens": 256,
    "num_blocks": 900,
    "context_length": 400,
    "num_slots": 8,
}


def always(ahead: int = 4) -> GuessingDrafter:
    """Has placeholders wherever it can, and no drafts but what they guess."""
    return GuessingDrafter(lambda request: [], Random(1), vocab_size=VOCAB_SIZE, most=0, ahead=ahead)


def measuring(depth: int = 0, skill: float = 1.0, each: float = 0.05, **options: Any) -> Engine:
    """An engine as served, whose steps take a hundredth of a second, and `each` of that for each token."""
    engine: Engine
    drafter = MixedDrafter(lambda: steps_of(engine, each) / 100)
    choice = options.pop("choice", DraftAdapterChoice(GENERAL))
    engine = Engine(depth=depth, drafter=drafter, draft_adapters=choice, **(ROOMY | options))
    engine.runner.guess_skill = skill
    return engine


def steps_of(engine: Engine, each: float) -> float:
    """What the time of all steps is, in that of a step without tokens."""
    return sum(1.0 + each * batch.num_tokens for batch in engine.runner.batches)


def run(
    engine: Engine, name: str, *, rows: int = 2, tokens: int = 100, tenant: str = "acme", like: str = ""
) -> int:
    """Returns the steps it took. Prompts and answers are others for every name, unless it is `like` one."""
    before, random = engine.runner.num_steps, Random(like or name)
    for row in range(rows):
        prompt = [random.randrange(VOCAB_SIZE) for _ in range(6)]
        ref = ADAPTERS[row % 4] if row % 5 else None
        assert engine.submit(submission(f"{name}{row}", prompt, tokens, tenant=tenant, adapter=ref)) is None
    while engine.core.has_work:
        engine.now += 0.01
        engine.step()
    for row in range(rows):
        assert engine.tokens(f"{name}{row}") == alone(engine.submitted[f"{name}{row}"])[0]
    engine.check_idle()
    return engine.runner.num_steps - before


def is_resident(engine: Engine, ref: AdapterRef) -> bool:
    return engine.slots.find(ref.digest) is not None


@pytest.mark.parametrize("depth", [0, 1])
def test_right_guesses_save_steps_and_are_counted_as_such(depth: int) -> None:
    engine = measuring(depth)
    # Steps alternate at worst between one token and four guesses.
    assert run(engine, "first") < 60
    stats = engine.core.stats
    assert stats.drafted_by_kind["adapter"] > 100
    assert stats.accepted_by_kind["adapter"] > 100
    assert stats.placeholder_tokens >= stats.drafted_by_kind["adapter"]
    assert stats.completion_tokens == 200, "placeholders are not billed"
    view = engine.core.view(stats)
    (general,) = (slot for slot in view.slots if slot.drafts_for_others)
    assert general.digest == GENERAL.ref.digest
    assert (general.drafted_tokens, general.accepted_tokens) == (
        stats.drafted_by_kind["adapter"],
        stats.accepted_by_kind["adapter"],
    )
    assert general.rows == 0
    (own,) = (slot for slot in view.slots if not slot.drafts_for_others)
    assert 0 < own.guessed_accepted <= own.guessed_tokens <= own.drafted_tokens
    (counts,) = view.drafts
    assert (counts.digest, counts.guessed_tokens) == (own.digest, own.guessed_tokens)


@pytest.mark.parametrize("depth", [0, 1])
def test_guesses_that_are_always_wrong_cost_little(depth: int) -> None:
    engine = measuring(depth, skill=0.0, each=0.1)
    run(engine, "warm", rows=3, tokens=40)
    before, guesses, without = steps_of(engine, 0.1), engine.runner.num_guesses, 0.0
    for tenant in range(3):
        run(engine, f"t{tenant}-", rows=3, tokens=150, tenant=f"tenant{tenant}")
        without += 150 * 1.0 + 0.1 * (3 * 150 + 3 * 5)
    assert engine.runner.num_guesses > guesses
    assert steps_of(engine, 0.1) - before < 1.03 * without


def test_behind_a_text_that_goes_on_are_no_placeholders() -> None:
    engine = measuring()
    run(engine, "first")
    before, drafted = engine.runner.num_guesses, engine.core.stats.drafted_by_kind
    run(engine, "again", like="first")
    after = engine.core.stats.drafted_by_kind
    assert after["text"] - drafted.get("text", 0) > 120
    assert engine.runner.num_guesses - before < 40


def test_steps_that_cost_by_the_token_have_no_placeholders() -> None:
    engine = measuring(skill=1.0, each=20.0)
    run(engine, "first", tokens=200)
    assert engine.runner.num_guesses < 40


def test_a_large_batch_has_no_placeholders() -> None:
    engine = measuring(num_blocks=2000)
    run(engine, "first", rows=MAX_ROWS + 1, tokens=20)
    assert engine.runner.num_guesses == 0
    assert not is_resident(engine, GENERAL.ref)


@pytest.mark.parametrize("depth", [0, 1])
def test_another_tenants_acceptance_changes_neither_drafts_nor_steps(depth: int) -> None:
    quiet, noisy = measuring(depth), measuring(depth)
    for engine in (quiet, noisy):
        run(engine, "warm", tenant="other")  # times of steps are everyone's
    noisy.runner.guess_skill = 0.0
    for number in range(3):
        run(noisy, f"bad{number}", tenant="bolt")
    noisy.runner.guess_skill = 1.0
    counted = [(engine.runner.num_guesses, engine.runner.num_accepted) for engine in (quiet, noisy)]
    assert run(noisy, "mine", tenant="acme") == run(quiet, "mine", tenant="acme")
    found = [
        (engine.runner.num_guesses - guesses, engine.runner.num_accepted - accepted)
        for engine, (guesses, accepted) in zip((quiet, noisy), counted, strict=True)
    ]
    assert found[0] == found[1]
    assert found[0][1] > 100


def test_an_adapters_own_draft_adapter_guesses_for_it_and_the_general_one_for_others() -> None:
    choice = DraftAdapterChoice(GENERAL, {ADAPTERS[1].digest: OWN})
    engine = Engine(drafter=always(), draft_adapters=choice, **ROOMY)
    run(engine, "all", rows=3, tokens=40)
    slots = {slot: ref.digest for ref in (GENERAL.ref, OWN.ref) for slot in [_slot(engine, ref)]}
    used: dict[str, set[str]] = {"": set(), ADAPTERS[1].digest: set(), ADAPTERS[2].digest: set()}
    rows: dict[int, str] = {}
    for batch in engine.runner.batches:
        for new in batch.new_rows:
            rows[new.row] = engine.runner._digests[new.slot]
        for one in batch.placeholders:
            used[rows[one.row]].add(slots[one.slot])
            assert one.num_tokens <= (2 if rows[one.row] == ADAPTERS[1].digest else 4)
    assert used == {
        "": {GENERAL.ref.digest},
        ADAPTERS[1].digest: {OWN.ref.digest},
        ADAPTERS[2].digest: {GENERAL.ref.digest},
    }


def _slot(engine: Engine, ref: AdapterRef) -> int:
    slot = engine.slots.find(ref.digest)
    assert slot is not None
    return slot.index


@pytest.mark.parametrize("priority", [PriorityClass.DEFAULT, PriorityClass.FLEX])
def test_a_draft_adapter_leaves_its_slot_where_an_adapter_waits_and_comes_back_later(
    priority: PriorityClass,
) -> None:
    engine = Engine(
        drafter=always(), draft_adapters=DraftAdapterChoice(GENERAL), **(ROOMY | {"num_slots": 2})
    )
    engine.submit(submission("base", [1, 2, 3], 200))
    engine.run(until=lambda: engine.runner.num_guesses > 20)
    engine.submit(submission("a", [1, 2], 100, adapter=ADAPTERS[0]))
    engine.run(until=lambda: len(engine.tokens("a")) > 5)
    assert is_resident(engine, GENERAL.ref), "there is room for both"
    engine.submit(submission("b", [1, 2], 100, adapter=ADAPTERS[1], priority=priority))
    for _ in range(3):
        engine.now += 0.01
        engine.step()
    assert not is_resident(engine, GENERAL.ref)
    assert len(engine.tokens("b")) > 0, "it waited for nothing but a step"
    before = engine.runner.num_guesses
    for _ in range(50):
        engine.now += 0.01
        engine.step()
    assert engine.runner.num_guesses == before
    engine.run(until=lambda: "a" in engine.finished and "b" in engine.finished)
    engine.submit(submission("late", [5, 2], 60))
    engine.now += PAUSE_SECONDS
    engine.run()
    assert engine.runner.num_guesses > before
    engine.check_idle()


def test_one_that_is_not_used_is_evicted_like_others() -> None:
    engine = Engine(
        drafter=always(), draft_adapters=DraftAdapterChoice(GENERAL), **(ROOMY | {"num_slots": 1})
    )
    engine.submit(submission("base", [1, 2, 3], 60))
    engine.run()
    assert engine.runner.num_guesses
    engine.now += IDLE_SECONDS
    engine.submit(submission("a", [1, 2], 20, adapter=ADAPTERS[0]))
    engine.run()
    assert not is_resident(engine, GENERAL.ref)
    engine.check_idle()
    assert engine.core.stats.adapter_evictions == 1


def test_one_that_cannot_be_loaded_is_tried_rarely_and_fails_no_request() -> None:
    engine = Engine(drafter=always(), draft_adapters=DraftAdapterChoice(GENERAL), **ROOMY)
    engine.broken_adapters.add(GENERAL.ref.digest)
    for number in range(3):
        engine.submit(submission(f"r{number}", [1, number], 150))
    while engine.core.has_work:
        engine.now += 0.05
        engine.step()
    assert {engine.reason(f"r{number}") for number in range(3)} == {"length"}
    assert engine.runner.num_guesses == 0
    assert engine.load_order == [GENERAL.ref.digest]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_whose_logits_are_not_finite_beside_placeholders_goes_on_without(depth: int) -> None:
    engine = Engine(depth=depth, drafter=always(), draft_adapters=DraftAdapterChoice(GENERAL), **ROOMY)
    engine.runner.fails_with_placeholders = True
    assert run(engine, "r", rows=3, tokens=30) <= 32
    assert engine.runner.num_guesses > 0
    assert engine.core.stats.errors == 0
    engine.runner.fail_prompts.add((1, 2, 3))
    engine.submit(submission("bad", [1, 2, 3], 12))
    engine.run()
    assert engine.reason("bad") == "error", "that is its own adapter's"
