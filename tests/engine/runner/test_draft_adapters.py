"""Placeholders behind rows change what is guessed, and nothing else: a real model answers as without them,
whatever its draft adapters are, and guesses are what the model itself would say there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.draft_adapters import pack_drafter
from engine.batch import NO_SLOT, Batch, Drafted, NewRow, Placeholders, Scheduled, StepResult, Verified
from engine.core import EngineCore
from engine.device.cpu_runner import ModelRunner
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.lora.pool import AdapterPool
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.weights import base_digest
from engine.parallel.messages import Step, batch_of, decoder, encode, step_message
from engine.protocol import AdapterRef, SamplingParams
from tests.engine.grammar import sapling
from tests.engine.grammar.test_constrained import LIST, PERSON
from tests.engine.grammar.test_drafts import RECORD, OverlappedRunner, Recorder
from tests.engine.reasoning.markers import reasoning
from tests.engine.runner.bases import VOCAB_SIZE, write_adapters, write_base, write_draft_adapter
from tests.engine.runner.rig import assert_alike, knowing, make_core, run
from tests.engine.runner.test_equivalence import submits
from tests.support.arithmetic import arithmetic_threads

PLACEHOLDER_ID = 7


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with arithmetic_threads(1):
        yield


def packed_draft_adapter(base: Path, folder: Path, seed: int, ahead: int) -> DraftAdapter:
    path = write_draft_adapter(
        base, folder / f"draft-{seed}", seed, placeholder_id=PLACEHOLDER_ID, ahead=ahead
    )
    return pack_drafter(path, base, base_digest(base), folder / "packed")


class World:
    """A small base with adapters, and two draft adapters: a general one and one of the adapter "wide"."""

    def __init__(self, path: Path) -> None:
        write_base(path / "base")
        self.adapters = write_adapters(path / "base", path / "adapters")
        self.folder = path / "adapters"
        self.base = path / "base"
        self.model: Model = load_model(path / "base")
        self.artifacts = path / "adapters" / "packed"
        self.general = packed_draft_adapter(self.base, self.folder, 50, 4)
        own = packed_draft_adapter(self.base, self.folder, 51, 3)
        self.choice = DraftAdapterChoice(self.general, {self.adapters["wide"].ref.digest: own})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_answers_are_those_without_placeholders_whatever_the_engine_is_short_of(world: World) -> None:
    requests = submits(world.adapters, 12, seed=1)
    without = run(make_core(world.model, world.artifacts), requests)

    def check(skill: float, every: int = 0, overlaps: bool = False, **options: Any) -> EngineCore:
        drafter = knowing(without, skill, vocab_size=VOCAB_SIZE, most=4, ahead=4)
        core = make_core(
            world.model,
            world.artifacts,
            drafter=drafter,
            draft_adapters=world.choice,
            **{"max_rows": 60, **options},
        )
        if overlaps:
            assert isinstance(core.runner, ModelRunner)
            core.runner = OverlappedRunner(core.runner)
        found = run(core, requests, every=every)
        assert found.answers == without.answers, "tokens, log-probabilities and reasons"
        assert drafter.num_guesses > 20
        assert drafter.num_guesses_drafted > 5
        usage = {name: event.usage for name, event in without.usage.items()}
        assert all(
            event.usage.completion_tokens == usage[name].completion_tokens
            for name, event in found.usage.items()
        )
        return core

    check(1.0)
    check(0.6, every=2, max_batch_tokens=60)
    check(0.7, overlaps=True)
    assert check(0.8, num_blocks=9).stats.preemptions > 0
    check(0.8, every=2, num_slots=3)
    core = check(0.8)
    again = run(core, requests)
    assert again.answers == without.answers, "what the prefix cache has is of true tokens alone"
    assert core.stats.cached_tokens > 0


def test_rows_with_grammars_budgets_and_penalties_answer_as_without(tmp_path: Path) -> None:
    model = sapling.small_model(tmp_path / "small")
    general = packed_draft_adapter(tmp_path / "small", tmp_path, 3, 3)
    requests = [
        sapling.submission(
            f"r{seed}",
            sapling.schema(PERSON) if seed % 3 else None,
            seed=seed,
            temperature=0.0 if seed == 1 else 0.9,
            max_tokens=40,
            frequency_penalty=0.4 if seed == 2 else 0.0,
            stop=("e",) if seed == 3 else (),
            tenant=f"t{seed % 2}",
            n=2,
        )
        for seed in range(4)
    ]
    requests.append(sapling.submission("short", sapling.schema(LIST), seed=3))
    requests.append(sapling.submission("thinks", None, reasoning=reasoning(5), max_tokens=30, seed=4))
    without = run(sapling.grammar_core(model, tmp_path), requests)
    for overlaps in (False, True):
        drafter = knowing(without, 0.8, vocab_size=model.config.vocab_size, most=4, ahead=4)
        choice = DraftAdapterChoice(general)
        core = sapling.grammar_core(
            model, tmp_path / "packed", max_rows=90, drafter=drafter, draft_adapters=choice
        )
        if overlaps:
            assert isinstance(core.runner, ModelRunner)
            core.runner = OverlappedRunner(core.runner)
        found = run(core, requests)
        assert found.answers == without.answers
        assert drafter.num_guesses > 40
        assert drafter.num_accepted > 30


def test_forced_tokens_texts_and_guesses_together_answer_as_without(tmp_path: Path) -> None:
    """The served drafter, to which steps cost the same whatever is in them."""
    model = sapling.small_model(tmp_path / "small")
    choice = DraftAdapterChoice(packed_draft_adapter(tmp_path / "small", tmp_path, 3, 3))
    requests = [
        sapling.submission(f"r{seed}", sapling.schema(RECORD), seed=seed, max_tokens=60, temperature=0.9)
        for seed in range(2)
    ]
    requests += [sapling.submission(f"free{seed}", None, max_tokens=50, seed=seed) for seed in range(2)]
    without = run(sapling.grammar_core(model, tmp_path), requests)
    drafter = Recorder()
    core = sapling.grammar_core(
        model, tmp_path / "packed", max_rows=64, drafter=drafter, draft_adapters=choice
    )
    assert_alike(run(core, requests), without)
    assert not drafter.refused, "what a grammar forces"
    stats = core.stats
    assert stats.drafted_by_kind["grammar"] == stats.accepted_by_kind["grammar"] > 20
    assert stats.drafted_by_kind["adapter"] > 0
    assert sum(stats.drafted_by_kind.values()) == stats.drafted_tokens


def test_a_draft_adapter_that_overflows_changes_no_answer(world: World) -> None:
    """Its keys lie behind the row's own, in the same block."""
    packed = PackedAdapter.read(artifact_path(world.artifacts, world.general.ref.digest))
    slab = packed.slab * np.float32(1e25)  # finite, as whatever is loaded: its products are not
    broken = PackedAdapter(packed.manifest, slab)
    folder = world.artifacts.parent / "broken"
    shutil.copytree(world.artifacts, folder, dirs_exist_ok=True)
    broken.write(artifact_path(folder, broken.digest))
    requests = submits(world.adapters, 8, seed=2)
    without = run(make_core(world.model, folder), requests)
    drafter = knowing(without, 0.5, vocab_size=VOCAB_SIZE, most=4, ahead=4)
    ref = AdapterRef(broken.digest, broken.manifest.rank)
    choice = DraftAdapterChoice(DraftAdapter(ref, PLACEHOLDER_ID, 4))
    found = run(make_core(world.model, folder, drafter=drafter, draft_adapters=choice, max_rows=60), requests)
    assert drafter.num_guesses > 10
    assert found.answers == without.answers


# What is guessed ------------------------------------------------------------------------------------------


def _runner(world: World, refs: list[AdapterRef | None]) -> ModelRunner:
    """With adapters in slots 0, 1..."""
    pool = AdapterPool(world.model.config, len(refs), world.model.device, world.model.dtype)
    for slot, ref in enumerate(refs):
        if ref is not None:
            pool.load(slot, PackedAdapter.read(artifact_path(world.artifacts, ref.digest), ref.digest))
    return ModelRunner(world.model, pool, 16, 16, 8, 128)


PROMPT = [11, 40, 93, 5, 62]
GREEDY = SamplingParams(20, temperature=0.0, ignore_eos=True)


def _begin(runner: ModelRunner, step: int, slot: int, tokens: list[int]) -> StepResult:
    new = NewRow(0, "r", tokens, len(PROMPT), 0, [1, 2], GREEDY, 0, slot)
    return runner.execute(Batch(step, new_rows=[new], scheduled=[Scheduled(0, len(tokens), True)]))


def test_a_guess_is_the_likeliest_token_behind_true_keys_and_placeholders(world: World) -> None:
    """Where the row's adapter and the draft adapter are one, a step with placeholders computes what a prompt
    of the same tokens would.
    """
    ref = world.general.ref
    runner = _runner(world, [ref])
    drawn = _begin(runner, 0, 0, PROMPT).token_ids
    drafts = [17, 29]
    result = runner.execute(
        Batch(
            1,
            scheduled=[Scheduled(0, 1 + 2 + 3, True)],
            drafted=[Drafted(0, drafts)],
            placeholders=[Placeholders(0, 3, PLACEHOLDER_ID, 0)],
        )
    )
    (guesses,) = result.guesses
    for num in range(3):
        other = _runner(world, [ref])
        known = [*PROMPT, *drawn, *drafts, *[PLACEHOLDER_ID] * (num + 1)]
        assert _begin(other, 0, 0, known).token_ids == [guesses[num]]


def test_placeholders_run_on_the_draft_adapter_alone_and_the_row_on_its_own(world: World) -> None:
    general, wide = world.general.ref, world.adapters["wide"].ref
    guesses, draws = {}, {}
    for name, row_slot, slot in (("both", 1, 0), ("base", NO_SLOT, 0), ("own", 1, 1)):
        runner = _runner(world, [general, wide])
        first = _begin(runner, 0, row_slot, PROMPT).token_ids
        result = runner.execute(
            Batch(
                1,
                scheduled=[Scheduled(0, 1 + 4, True)],
                drafted=[Drafted(0, [])],
                placeholders=[Placeholders(0, 4, PLACEHOLDER_ID, slot)],
            )
        )
        guesses[name], draws[name] = result.guesses[0], [*first, *result.token_ids]
        # What follows is as if there had been no placeholders.
        rest = []
        tokens = result.token_ids
        for step in range(2, 6):
            verified = [Verified(0, tokens, 2, tokens[-1])] if step == 2 else []
            after = Batch(step, verified=verified, scheduled=[Scheduled(0, 1, True)])
            tokens = runner.execute(after).token_ids
            rest += tokens
        plain = _runner(world, [general, wide])
        expected = _begin(plain, 0, row_slot, PROMPT).token_ids
        for step in range(1, 6):
            expected += plain.execute(Batch(step, scheduled=[Scheduled(0, 1, True)])).token_ids
        assert draws[name] + rest == expected
    assert draws["both"] == draws["own"] != draws["base"]
    assert len({tuple(one) for one in guesses.values()}) == 3


def test_messages_to_ranks_have_the_placeholders() -> None:
    batch = Batch(
        3,
        scheduled=[Scheduled(0, 4, True)],
        drafted=[Drafted(0, [5])],
        placeholders=[Placeholders(0, 2, PLACEHOLDER_ID, 4)],
    )
    sent = decoder(Step).decode(encode(step_message(batch, [])))
    assert batch_of(sent).placeholders == batch.placeholders
    assert batch_of(sent).drafted == batch.drafted
