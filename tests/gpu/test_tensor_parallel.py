"""Two ranks, each with a GPU of its own where there are two: they read one another's memory, in graphs.

With one GPU both share it, over gloo: slow, but every part of a step that does not need linked GPUs.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from adapters.packing import pack
from engine.model.config import load_config
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, Grammar, SamplingParams, Submit, TokenLogprob
from examples.sapling import ADAPTERS, BASE, tokens
from examples.sapling.tasks import TASKS
from tests.engine.parallel.group import engine_of
from tests.engine.runner.rig import Answer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

OWN_GPUS = torch.cuda.device_count() >= 2
PER_TASK = 6
MODEL_CARD_ACCURACY = 0.93
SIZES = {
    "max_rows": 16,
    "max_batch_tokens": 256,
    "num_slots": 12,
    "adapter_bytes": 64 << 20,
    "adapter_cache_bytes": 64 << 20,
    "kv_bytes": 64 << 20,
    "memory_share": 0.5,
    "cuda_graphs": OWN_GPUS,
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, AdapterRef]]:
    folder = tmp_path_factory.mktemp("artifacts")
    config, digest = load_config(BASE), base_digest(BASE)
    return folder, {name: pack(ADAPTERS / name, config, digest, folder) for name in TASKS}


Answers = tuple[dict[str, list[TokenLogprob]], dict[tuple[str, int], Answer]]


def run(ranks: int, folder: Path, submits: list[Submit], sizes: dict[str, int | str | bool]) -> Answers:
    """The requests' scores and answers, from an engine in a process of its own, as engines are: a rank's
    connections to others last as long as its process.
    """
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawning) as process:
        return process.submit(_run, ranks, folder, submits, sizes).result()


def _run(ranks: int, folder: Path, submits: list[Submit], sizes: dict[str, int | str | bool]) -> Answers:
    with engine_of(ranks, BASE, folder, device="cuda", is_sapling=True, own_gpus=OWN_GPUS, **sizes) as group:
        found = group.run(submits)
    return found.scores, found.answers


@pytest.mark.parametrize(
    ("quantization", "more"),
    [("none", {}), ("fp8", {"kv_dtype": "fp8"}), ("int4", {}), ("none", {"num_blocks": 40, "num_slots": 2})],
    ids=["bf16", "fp8", "int4", "preempted"],
)
def test_saplings_adapters_answer_at_their_model_cards_accuracy(
    quantization: str, more: dict[str, int | str], packed: tuple[Path, dict[str, AdapterRef]]
) -> None:
    folder, refs = packed
    encoder = tokens.Encoder(BASE)
    greedy = SamplingParams(48, temperature=0.0)
    examples = {
        f"{name}-{index}": (task, example)
        for name, task in TASKS.items()
        for index, example in enumerate(task.examples("heldout", PER_TASK, seed=11))
    }
    submits = [
        Submit(key, "t", encoder.prompt(example.prompt), greedy, refs[key.rpartition("-")[0]])
        for key, (_, example) in examples.items()
    ]
    sizes = SIZES | {"quantization": quantization} | more
    _, answers = run(2, folder, submits, sizes)
    right = [
        task.check(example, encoder.decode(answers[key, 0].token_ids))
        for key, (task, example) in examples.items()
    ]
    assert sum(right) / len(right) >= MODEL_CARD_ACCURACY


def test_every_kind_of_request_as_on_one_rank(packed: tuple[Path, dict[str, AdapterRef]]) -> None:
    """bf16 sums differ in their last bits: log-probabilities are near, the scores of given tokens, too."""
    folder, refs = packed
    encoder = tokens.Encoder(BASE)
    prompt = encoder.prompt("12 + 7")
    asked = {
        "greedy": SamplingParams(12, temperature=0.0, logprobs=2),
        "scored": SamplingParams(4, temperature=0.0, prompt_logprobs=2),
        "drawn": SamplingParams(12, temperature=0.9, top_p=0.9, seed=3),
        "penalized": SamplingParams(12, temperature=0.0, repetition_penalty=1.2, logit_bias={5: 4.0}),
    }
    submits = [
        Submit(f"{name}-{index}", "t", prompt, params, adapter)
        for name, params in asked.items()
        for index, adapter in enumerate([None, refs["add-numbers"]])
    ]
    pattern = Grammar("regex", "(yes|no), (always|never)")
    submits.append(Submit("held", "t", prompt, SamplingParams(40, seed=1), grammar=pattern))
    runs = [run(ranks, folder, submits, SIZES) for ranks in (1, 2)]
    (scores_here, here), (scores_there, there) = runs
    assert there["held", 0].finish_reason == "stop"
    for index in range(2):
        ours, theirs = (
            [entry.logprob for entry in scores[f"scored-{index}"]] for scores in (scores_here, scores_there)
        )
        assert theirs == pytest.approx(ours, rel=0.05, abs=0.15)
        first = [answers[f"greedy-{index}", 0].logprobs[0].logprob for answers in (here, there)]
        assert first[1] == pytest.approx(first[0], abs=0.15)
    texts = [
        {key: encoder.decode(answer.token_ids) for key, answer in answers.items()}
        for answers in (here, there)
    ]
    differ = {key: (texts[0][key], texts[1][key]) for key in texts[0] if texts[0][key] != texts[1][key]}
    assert len(differ) <= 3, differ
