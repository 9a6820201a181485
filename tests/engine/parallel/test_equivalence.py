"""An engine of several ranks answers like one of one, whatever its requests ask for."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from engine.protocol import Grammar, SamplingParams, Submit
from engine.request import Request
from engine.vocabulary import Vocabulary
from tests.engine.parallel.group import engine_of
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.runner.bases import VOCAB_SIZE, write_adapters, write_base, write_draft_adapter
from tests.engine.runner.rig import assert_alike

SAPLING = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights" / "base"
pytestmark = pytest.mark.usefixtures("forked_ranks")
SIZES = {"max_rows": 8, "max_batch_tokens": 64, "context_length": 128, "num_slots": 3}


def _requests(adapters: list, num_tokens: int = 8) -> list[Submit]:
    asked = [
        SamplingParams(num_tokens, temperature=0.0, ignore_eos=True),
        SamplingParams(num_tokens, temperature=0.8, seed=9, ignore_eos=True, logprobs=3),
        SamplingParams(num_tokens, top_p=0.8, top_k=30, min_p=0.01, seed=4, ignore_eos=True),
        SamplingParams(num_tokens, temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(num_tokens, temperature=0.0, frequency_penalty=1.0, logit_bias={5: 4.0}, logprobs=0),
        SamplingParams(num_tokens, seed=5, prompt_logprobs=2),
    ]
    shared = [7 + index % 90 for index in range(40)]  # a prefix that later requests find cached
    submits = []
    for index in range(18):
        prompt = [*shared[: 5 * (index % 8)], 11 + index, 30 + 2 * index, 60]
        adapter = adapters[index % len(adapters)]
        submits.append(Submit(f"r{index}", "t", prompt, asked[index % 6], adapter, n=1 + index % 2))
    return submits


@pytest.mark.parametrize(
    ("architecture", "ranks", "changes"),
    [
        ("llama", 2, {}),
        ("llama", 4, {"attention_bias": True, "mlp_bias": True}),  # four ranks share two heads of keys
        ("qwen2", 2, {}),
        ("qwen3", 2, {"num_key_value_heads": 4}),
    ],
    ids=["llama", "biases-shared-keys", "qwen2-tied", "qwen3"],
)
def test_every_kind_of_request(architecture: str, ranks: int, changes: dict, tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_base(base, architecture, seed=3, **changes)
    refs = [adapter.ref for adapter in write_adapters(base, tmp_path / "adapters").values()]
    submits = _requests([None, *refs])
    artifacts = tmp_path / "adapters" / "packed"
    with engine_of(1, base, artifacts, **SIZES) as alone:
        here = alone.run(submits)
        again = alone.run(submits[2:8])
    with engine_of(ranks, base, artifacts, **SIZES) as group:
        there = group.run(submits)
        cached = group.run(submits[2:8])  # one of each kind
        assert group.core.stats.cached_tokens > 0 < group.core.stats.adapter_evictions
    assert_alike(there, here)
    assert_alike(cached, again)


def test_preempted_rows_continue(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_base(base, seed=3)
    submits = _requests([None], 16)
    sizes = SIZES | {"num_blocks": 9, "context_length": 80}
    with engine_of(1, base, tmp_path, **sizes) as alone:
        here = alone.run(submits)
    with engine_of(2, base, tmp_path, **sizes) as group:
        there = group.run(submits)
        assert group.core.stats.preemptions > 0
    assert_alike(there, here)


def test_placeholders_run_on_all_ranks(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_base(base, seed=3)
    refs = [adapter.ref for adapter in write_adapters(base, tmp_path / "adapters").values()]
    folder = write_draft_adapter(base, tmp_path / "draft", 8, ahead=3)
    submits = _requests([None, *refs])[:8]
    artifacts = tmp_path / "adapters" / "packed"
    with engine_of(1, base, artifacts, **SIZES) as alone:
        here = alone.run(submits)

    def answer(request: Request) -> list[int]:
        return here.answers[request.request_id, request.index].token_ids

    drafter = GuessingDrafter(answer, Random(2), vocab_size=VOCAB_SIZE, skill=0.8, most=3, ahead=3)
    sizes = SIZES | {"max_rows": 40, "num_slots": 6}
    with engine_of(2, base, artifacts, drafter=drafter, draft_folder=folder, **sizes) as group:
        there = group.run(submits)
    assert_alike(there, here)
    assert drafter.num_guesses > 10
    assert drafter.num_guesses_drafted > 3


def test_sapling_in_eight_bits_and_held_to_a_grammar(tmp_path: Path) -> None:
    """In eight bits parts of a row have scales of their own: tokens may differ, texts are of the grammar."""
    greedy = SamplingParams(40, temperature=0.0)
    pattern = Grammar("regex", "(yes|no), (always|never)")
    submits = [Submit(f"r{index}", "t", [40 + index, 50, 60], greedy, grammar=pattern) for index in range(4)]
    with engine_of(2, SAPLING, tmp_path, is_sapling=True, quantization="int8", **SIZES) as group:
        there = group.run(submits)
    pieces = Vocabulary.load(SAPLING).token_bytes
    for answer in there.answers.values():
        assert answer.finish_reason == "stop"
        text = b"".join(pieces[token] for token in answer.token_ids)
        assert re.fullmatch(pattern.source.encode(), text), text
