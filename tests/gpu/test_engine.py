"""A whole engine on the device: scheduler, runner, sampler, packed adapters. Its answers are a CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adapters.packing import pack
from engine.core import EngineCore
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import SamplingParams, Submit
from examples.sapling import ADAPTERS, BASE, tokens
from examples.sapling.tasks import TASKS
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft
from tests.engine.runner import rig
from tests.engine.runner.bases import VOCAB_SIZE, write_adapters, write_base

pytestmark = pytest.mark.gpu

PROMPTS_PER_TASK = 5
MAX_TOKENS = 48


def make_core(base_dir: Path, artifacts: Path, device: torch.device | str, **sizes: int) -> EngineCore:
    return rig.make_core(load_model(base_dir, device=device), artifacts, **sizes)


def test_sapling_and_its_adapters_answer_as_on_a_cpu(tmp_path: Path, device: torch.device) -> None:
    """Held-out prompts of every task, on its adapter and on the bare base, all in one queue."""
    encoder = tokens.Encoder(BASE)
    config, digest = load_config(BASE), base_digest(BASE)
    greedy = SamplingParams(MAX_TOKENS, temperature=0.0)
    submits, asked = [], {}
    for name, task in TASKS.items():
        ref = pack(ADAPTERS / name, config, digest, tmp_path)
        for index, example in enumerate(task.examples("heldout", PROMPTS_PER_TASK, seed=11)):
            asked[f"{name}-{index}"] = example
            prompt = encoder.prompt(example.prompt)
            submits.append(Submit(f"{name}-{index}", "t", prompt, greedy, ref))
            if not index:
                submits.append(Submit(f"base-{name}", "t", prompt, greedy))
    sizes = {"num_slots": 6, "max_rows": 32, "num_blocks": 400}
    here = rig.run(make_core(BASE, tmp_path, "cpu", **sizes), submits)
    there = rig.run(make_core(BASE, tmp_path, device, **sizes), submits)
    assert there.tokens() == here.tokens()
    for name, task in TASKS.items():
        keys = [f"{name}-{index}" for index in range(PROMPTS_PER_TASK)]
        right = [task.check(asked[key], encoder.decode(there.answers[key, 0].token_ids)) for key in keys]
        assert sum(right) >= PROMPTS_PER_TASK - 1, name


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "sizes", [{}, {"max_batch_tokens": 16}, {"num_blocks": 9}], ids=["roomy", "chunked", "starved"]
)
def test_every_kind_of_request(
    architecture: str, sizes: dict[str, int], tmp_path: Path, device: torch.device
) -> None:
    base = tmp_path / "base"
    write_base(base, architecture, seed=3)
    adapters = [None, *(adapter.ref for adapter in write_adapters(base, tmp_path / "adapters").values())]
    asked = [
        SamplingParams(16, temperature=0.0, ignore_eos=True),
        SamplingParams(16, temperature=0.8, seed=9, ignore_eos=True, logprobs=3),
        SamplingParams(16, top_p=0.8, top_k=30, min_p=0.01, seed=4, ignore_eos=True),
        SamplingParams(16, temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(16, temperature=0.0, frequency_penalty=1.0, logit_bias={5: 4.0}, logprobs=0),
        SamplingParams(16, min_tokens=6, seed=5, stop_token_ids=(9, 11, 50), logprobs=2),
    ]
    generator = torch.Generator().manual_seed(2)
    submits = []
    for index in range(18):
        length = int(torch.randint(1, 40, (), generator=generator))
        prompt = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
        submits.append(
            Submit(f"r{index}", "t", prompt, asked[index % 6], adapters[index % 5], n=1 + index % 2)
        )
    artifacts = tmp_path / "adapters" / "packed"
    here = rig.run(make_core(base, artifacts, "cpu"), submits)
    there = rig.run(make_core(base, artifacts, device, **sizes), submits)
    assert there.tokens() == here.tokens()
    for key, answer in here.answers.items():
        found = there.answers[key]
        assert found.finish_reason == answer.finish_reason
        assert [entry.logprob for entry in found.logprobs] == pytest.approx(
            [entry.logprob for entry in answer.logprobs], abs=1e-3
        )
    assert (there.core.stats.preemptions > 0) == ("num_blocks" in sizes)


def test_a_broken_adapter_ends_in_an_error_of_its_own(tmp_path: Path, device: torch.device) -> None:
    base, artifacts = tmp_path / "base", tmp_path / "adapters" / "packed"
    config = write_base(base)
    refs = {name: adapter.ref for name, adapter in write_adapters(base, tmp_path / "adapters").items()}
    tensors = lora_tensors(config, LINEARS, 8, std=1e25)
    peft_dir = write_peft(tmp_path / "broken", tensors, r=8, target_modules=list(LINEARS))
    broken = pack(peft_dir, config, base_digest(base), artifacts, "float32")
    greedy = SamplingParams(12, temperature=0.0, ignore_eos=True)
    good = []
    for index, ref in enumerate([None, *refs.values(), None]):
        prompt = [3 + (7 * index + 11 * place) % 200 for place in range(9 + 4 * index)]
        good.append(Submit(f"good-{index}", "t", prompt, greedy, ref))
    bad = Submit("broken", "t", [3 + 13 * place % 200 for place in range(21)], greedy, broken)
    expected = rig.run(make_core(base, artifacts, "cpu"), good).tokens()
    core = make_core(base, artifacts, device, num_blocks=24)
    together = rig.run(core, [*good[:3], bad, *good[3:]])
    answer = together.answers.pop(("broken", 0))
    assert (answer.finish_reason, answer.token_ids) == ("error", [])
    assert together.tokens() == expected
    # Its blocks and rows pass to others: nothing of it may be left there.
    assert rig.run(core, good).tokens() == expected
