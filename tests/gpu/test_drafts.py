"""With drafts or without, a GPU answers the same: greedy and drawn, on many adapters, at every parameter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from adapters.packing import pack
from cli.draft_adapters import pack_drafter
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, SamplingParams, Submit
from examples.sapling import ADAPTERS, BASE, tokens
from examples.sapling.tasks import TASKS
from tests.engine.runner.bases import write_draft_adapter
from tests.engine.runner.rig import Run, knowing
from tests.gpu.device_engine import device_engine

pytestmark = pytest.mark.gpu

NEAR_TIE = 0.25
"""Steps with drafts have other sizes than those without, so that sums round otherwise, and now and then two
nearly equal logits change places: by so many nats at most."""
LOST = 4
"""Answers more that may differ than between two batchings without drafts: a drawn token has no such bound."""

KNOWN = {"vocab_size": load_config(BASE).vocab_size, "seed": 3}
"""How drafts are guessed from answers."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, AdapterRef]]:
    folder = tmp_path_factory.mktemp("artifacts")
    config, digest = load_config(BASE), base_digest(BASE)
    return folder, {name: pack(ADAPTERS / name, config, digest, folder) for name in TASKS}


def asked(refs: dict[str, AdapterRef], per_task: int) -> list[Submit]:
    encoder = tokens.Encoder(BASE)
    kinds = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.7, "seed": 5},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 30, "seed": 6},
        {"temperature": 0.0, "frequency_penalty": 0.6, "presence_penalty": 0.3},
        {"temperature": 0.8, "repetition_penalty": 1.2, "min_tokens": 12, "seed": 7},
        {"temperature": 0.0, "logprobs": 3},
    ]
    found = []
    for name, task in TASKS.items():
        for index, example in enumerate(task.examples("heldout", per_task, seed=11)):
            params = msgspec.structs.replace(SamplingParams(32), **kinds[len(found) % len(kinds)])
            found.append(
                Submit(f"{name}-{index}", "t", encoder.prompt(example.prompt), params, refs[name], n=1)
            )
    return found


def differing(found: Run, expected: Run) -> int:
    """Counts the answers that differ. Greedy ones may, only where two tokens were nearly as likely."""
    count = 0
    for key, answer in expected.answers.items():
        other = found.answers[key]
        if other.token_ids == answer.token_ids:
            continue
        count += 1
        if answer.logprobs:
            pairs = zip(answer.token_ids, other.token_ids, strict=False)
            place = next((place for place, (one, two) in enumerate(pairs) if one != two), None)
            assert place is not None, "one answer goes on where the other ends"
            first, second, *_ = answer.logprobs[place].top
            assert first.logprob - second.logprob < NEAR_TIE, (key, place)
    return count


@pytest.mark.parametrize("quantization", ["none", "fp8"])
@pytest.mark.parametrize("cuda_graphs", [True, False], ids=["graphs", "eager"])
def test_answers_are_those_without_drafts(
    quantization: str, cuda_graphs: bool, packed: tuple[Path, dict[str, AdapterRef]]
) -> None:
    folder, refs = packed
    model = load_model(BASE, quantization, torch.bfloat16, "cuda")
    requests = asked(refs, 4)
    with device_engine(model, folder, max_rows=96, cuda_graphs=cuda_graphs) as engine:
        without = engine.run(requests, every=1)
        noise = differing(engine.run(requests, every=3), without)
    for skill in (1.0, 0.7):
        drafter = knowing(without, skill, **KNOWN)
        with device_engine(model, folder, max_rows=96, cuda_graphs=cuda_graphs, drafter=drafter) as engine:
            found = engine.run(requests, every=1)
        assert drafter.num_accepted > 100, (drafter.num_accepted, drafter.num_drafts)
        assert differing(found, without) <= noise + LOST, (noise, skill)


def test_blocks_run_out_behind_drafts_and_nothing_is_lost(packed: tuple[Path, dict[str, AdapterRef]]) -> None:
    folder, refs = packed
    model = load_model(BASE, "none", torch.bfloat16, "cuda")
    requests = asked(refs, 4)
    with device_engine(model, folder, max_rows=64) as engine:
        without = engine.run(requests)
        noise = differing(engine.run(requests, every=3), without)
    drafter = knowing(without, 0.8, **KNOWN)
    with device_engine(model, folder, max_rows=64, num_blocks=12, num_slots=3, drafter=drafter) as engine:
        # All at once: one each step might wait for its adapter instead. In the first run they may still do.
        runs = [engine.run(requests) for _ in range(3)]
        assert engine.core.stats.preemptions > 0
    assert max(differing(found, without) for found in runs) <= noise + LOST, noise


@pytest.mark.parametrize("quantization", ["none", "fp8"])
@pytest.mark.parametrize("cuda_graphs", [True, False], ids=["graphs", "eager"])
def test_answers_are_those_without_placeholders(
    quantization: str, cuda_graphs: bool, packed: tuple[Path, dict[str, AdapterRef]], tmp_path: Path
) -> None:
    """Two draft adapters of random weights: a general one, and one of an adapter of its own."""
    folder, refs = packed
    general, own = (draft_adapter(tmp_path, folder, seed) for seed in (1, 2))
    choice = DraftAdapterChoice(general, {refs["pirate"].digest: own})
    model = load_model(BASE, quantization, torch.bfloat16, "cuda")
    requests = asked(refs, 4)
    with device_engine(model, folder, max_rows=96, cuda_graphs=cuda_graphs) as engine:
        without = engine.run(requests, every=1)
        noise = differing(engine.run(requests, every=3), without)
    drafter = knowing(without, 0.8, **KNOWN, most=3, ahead=4)
    options = {"max_rows": 128, "num_slots": 14, "cuda_graphs": cuda_graphs}
    with device_engine(model, folder, drafter=drafter, draft_adapters=choice, **options) as engine:
        found = engine.run(requests, every=1)
    assert drafter.num_guesses > 200
    assert drafter.num_guesses_drafted > 50
    assert differing(found, without) <= noise + LOST, noise


def test_a_draft_adapter_that_overflows_ends_no_request(
    packed: tuple[Path, dict[str, AdapterRef]], tmp_path: Path
) -> None:
    folder, refs = packed
    choice = DraftAdapterChoice(draft_adapter(tmp_path, folder, 3, std=1e25))
    model = load_model(BASE, "none", torch.bfloat16, "cuda")
    requests = asked(refs, 2)
    with device_engine(model, folder, max_rows=64) as engine:
        without = engine.run(requests)
        noise = differing(engine.run(requests, every=3), without)
    drafter = knowing(without, 0.8, **KNOWN, most=2, ahead=4)
    with device_engine(
        model, folder, max_rows=96, num_slots=13, drafter=drafter, draft_adapters=choice
    ) as engine:
        found = engine.run(requests)
        assert engine.core.stats.errors == 0
    assert drafter.num_guesses > 20
    assert differing(found, without) <= noise + LOST, noise


def draft_adapter(tmp_path: Path, folder: Path, seed: int, std: float = 0.05) -> DraftAdapter:
    path = write_draft_adapter(BASE, tmp_path / f"draft-{seed}", seed, ahead=4, std=std)
    return pack_drafter(path, BASE, base_digest(BASE), folder)
