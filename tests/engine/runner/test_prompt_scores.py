"""A prompt's scores are those of transformers and PEFT, whatever way the prompt takes through the engine."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor

from engine.model.loading import load_model
from engine.model.model import Model
from engine.protocol import PriorityClass, SamplingParams, Submit, TokenLogprob
from tests.engine.runner.bases import VOCAB_SIZE, Adapter, write_adapters, write_base
from tests.engine.runner.rig import make_core, run
from tests.support.arithmetic import arithmetic_threads

CLOSE = 2e-4
"""Log-probabilities of an fp32 model: sums of other shapes round in other orders."""
NUM_TOPS = 3
NAMES: list[str | None] = [None, "wide", "mixed"]


class Rig(NamedTuple):
    model: Model
    base: Path
    artifacts: Path
    adapters: dict[str, Adapter]
    prompts: list[tuple[list[int], str | None]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Prompts of several blocks, on the base and two adapters."""
    folder = tmp_path_factory.mktemp("scored")
    base = folder / "base"
    write_base(base, seed=3)
    written = write_adapters(base, folder / "adapters")
    adapters = {name: written[name] for name in NAMES if name}
    noise = random.Random(4)
    prompts = [
        ([noise.randrange(3, VOCAB_SIZE) for _ in range(noise.randrange(30, 98))], NAMES[index % 3])
        for index in range(10)
    ]
    return Rig(load_model(base), base, folder / "adapters" / "packed", adapters, prompts)


@pytest.fixture(scope="module")
def reference(rig: Rig) -> list[Tensor]:
    """By prompt, [T, V] log-probabilities of a plain forward under transformers and PEFT."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(rig.base, dtype=torch.float32)
        first, *others = rig.adapters
        folders = {name: adapter.peft_dir for name, adapter in rig.adapters.items()}
        wrapped = peft.PeftModel.from_pretrained(model, folders[first], adapter_name=first).eval()
        for name in others:
            wrapped.load_adapter(folders[name], adapter_name=name)
    found = []
    with torch.inference_mode():
        for prompt, name in rig.prompts:
            if name is None:
                with wrapped.disable_adapter():
                    logits = wrapped(torch.tensor([prompt])).logits[0]
            else:
                wrapped.set_adapter(name)
                logits = wrapped(torch.tensor([prompt])).logits[0]
            found.append(logits.float().log_softmax(dim=-1))
    return found


def submits(rig: Rig, max_tokens: int = 0, **sampling: int) -> list[Submit]:
    params = SamplingParams(
        max_tokens, temperature=0.0, ignore_eos=True, prompt_logprobs=NUM_TOPS, **sampling
    )
    return [
        Submit(f"r{index}", "t", prompt, params, rig.adapters[name].ref if name else None)
        for index, (prompt, name) in enumerate(rig.prompts)
    ]


def check(rig: Rig, reference: list[Tensor], scores: dict[str, list[TokenLogprob]], start: int = 1) -> None:
    for index, ((prompt, _), expected_TV) in enumerate(zip(rig.prompts, reference, strict=True)):
        found = scores.get(f"r{index}", [])
        assert [score.token_id for score in found] == prompt[start:]
        for position, score in enumerate(found, start=start):
            given_V = expected_TV[position - 1]
            assert score.logprob == pytest.approx(float(given_V[score.token_id]), abs=CLOSE)
            assert len(score.top) == NUM_TOPS
            likeliest = given_V.topk(NUM_TOPS).values.tolist()
            assert [top.logprob for top in score.top] == pytest.approx(likeliest, abs=CLOSE)
            for top in score.top:
                assert top.logprob == pytest.approx(float(given_V[top.token_id]), abs=CLOSE)


Way = Callable[[Rig], dict[str, list[TokenLogprob]]]


def together(rig: Rig) -> dict[str, list[TokenLogprob]]:
    return run(make_core(rig.model, rig.artifacts, max_batch_tokens=2048), submits(rig)).scores


def alone(rig: Rig) -> dict[str, list[TokenLogprob]]:
    found: dict[str, list[TokenLogprob]] = {}
    for submit in submits(rig):
        found |= run(make_core(rig.model, rig.artifacts), [submit]).scores
    return found


def in_chunks(rig: Rig) -> dict[str, list[TokenLogprob]]:
    return run(make_core(rig.model, rig.artifacts, max_batch_tokens=16), submits(rig)).scores


def while_generating(rig: Rig) -> dict[str, list[TokenLogprob]]:
    """Its own tokens, and others' beside it."""
    core = make_core(rig.model, rig.artifacts, max_batch_tokens=48)
    return run(core, submits(rig, max_tokens=12), every=2).scores


def preempted(rig: Rig) -> dict[str, list[TokenLogprob]]:
    """Blocks for one of them and a bit: generating takes them from those whose prompts are half computed."""
    core = make_core(rig.model, rig.artifacts, num_blocks=10, max_batch_tokens=24)
    found = run(core, submits(rig, max_tokens=30)).scores
    assert core.stats.preemptions
    return found


def among_requests_without_scores(rig: Rig) -> dict[str, list[TokenLogprob]]:
    plain = [
        Submit(
            f"plain{index}",
            "u",
            prompt,
            SamplingParams(20, seed=index),
            rig.adapters[name].ref if name else None,
        )
        for index, (prompt, name) in enumerate(rig.prompts)
    ]
    mixed = [submit for pair in zip(plain, submits(rig), strict=True) for submit in pair]
    return run(make_core(rig.model, rig.artifacts, max_rows=20), mixed).scores


@pytest.mark.parametrize(
    "way", [together, alone, in_chunks, while_generating, preempted, among_requests_without_scores]
)
def test_scores_are_those_of_a_plain_forward(rig: Rig, reference: list[Tensor], way: Way) -> None:
    check(rig, reference, way(rig))


@pytest.mark.parametrize("start", [1, 17, 20])
def test_with_a_cached_prefix_scores_are_the_same(rig: Rig, reference: list[Tensor], start: int) -> None:
    core = make_core(rig.model, rig.artifacts)
    plain = SamplingParams(1, temperature=0.0)
    run(core, [msgspec.structs.replace(submit, sampling=plain) for submit in submits(rig)])
    again = run(core, submits(rig, score_from=start))
    check(rig, reference, again.scores, start)
    cached = {event.usage.cached_tokens for event in again.usage.values()}
    assert cached == ({0} if start == 1 else {16})


def test_pieces_of_any_size_give_the_same(
    rig: Rig, reference: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.device.scoring.CHUNK_LOGITS", 5 * rig.model.config.vocab_size)
    check(rig, reference, together(rig))


def test_rows_ask_for_different_numbers_of_likeliest(rig: Rig) -> None:
    """In one step: each gets its own, and the same as with others."""
    alike = together(rig)
    requests = [
        msgspec.structs.replace(
            submit, sampling=SamplingParams(0, temperature=0.0, prompt_logprobs=index % (NUM_TOPS + 1))
        )
        for index, submit in enumerate(submits(rig))
    ]
    found = run(make_core(rig.model, rig.artifacts, max_batch_tokens=2048), requests).scores
    for index in range(len(requests)):
        mine, theirs = found[f"r{index}"], alike[f"r{index}"]
        assert [score.logprob for score in mine] == [score.logprob for score in theirs]
        assert [score.top for score in mine] == [score.top[: index % (NUM_TOPS + 1)] for score in theirs]


def test_many_scored_prompts_at_flex_leave_others_answers_as_they_were(rig: Rig) -> None:
    greedy = SamplingParams(40, temperature=0.0, ignore_eos=True)
    requests = [
        Submit(f"d{index}", "u", prompt, greedy, rig.adapters[name].ref if name else None)
        for index, (prompt, name) in enumerate(rig.prompts)
    ]
    expected = run(make_core(rig.model, rig.artifacts), requests).tokens()
    core = make_core(
        rig.model, rig.artifacts, num_blocks=600, max_rows=32, max_batch_tokens=256, max_flex_tokens=32
    )
    flood = [
        msgspec.structs.replace(submit, request_id=f"{submit.request_id}-{copy}", priority=PriorityClass.FLEX)
        for copy in range(7)
        for submit in submits(rig)
    ]
    assert len(flood) >= 64
    beside = run(core, [*flood[:10], *requests, *flood[10:]])
    assert {key: tokens for key, tokens in beside.tokens().items() if key[0].startswith("d")} == expected
    assert len(beside.scores) == len(flood)
    assert all(len(beside.scores[s.request_id]) == len(s.prompt_ids) - 1 for s in flood)
