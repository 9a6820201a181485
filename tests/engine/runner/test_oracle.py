"""Greedy tokens are those of transformers and PEFT in fp32, for mixed adapters in one batch."""

import warnings
from pathlib import Path

import pytest
import torch

from adapters.packing import pack
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import SamplingParams, Submit
from tests.engine.runner.bases import ARCHITECTURES, VOCAB_SIZE, write_adapters, write_base
from tests.engine.runner.rig import make_core, run
from tests.support.arithmetic import arithmetic_threads

NUM_TOKENS = 16
SAPLING = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights"
SAPLING_PROMPTS = {"sort-numbers": "42 7 19 3", "add-numbers": "12 + 30"}


@pytest.fixture(scope="module")
def peft():
    """Imported here because it takes ten seconds."""
    with arithmetic_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
        import transformers

        transformers.utils.logging.disable_progress_bar()
        yield peft


def oracle(peft, base_dir: Path, adapters: dict[str, Path]):
    """(prompt, adapter name) -> greedy tokens of PEFT."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    first, *others = adapters
    wrapped = peft.PeftModel.from_pretrained(model, adapters[first], adapter_name=first).eval()
    for name in others:
        wrapped.load_adapter(adapters[name], adapter_name=name)

    @torch.inference_mode()
    def generate(prompt: list[int], name: str | None) -> list[int]:
        ids = torch.tensor([prompt])
        requests = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": NUM_TOKENS}
        if name is None:
            with wrapped.disable_adapter():
                out = wrapped.generate(**requests, do_sample=False)
        else:
            wrapped.set_adapter(name)
            out = wrapped.generate(**requests, do_sample=False)
        return out[0, len(prompt) :].tolist()

    return generate


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_mixed_adapters_answer_as_under_peft(peft, tmp_path, architecture):
    write_base(tmp_path / "base", architecture, seed=3)
    adapters = write_adapters(tmp_path / "base", tmp_path / "adapters")
    generate = oracle(peft, tmp_path / "base", {name: adapter.peft_dir for name, adapter in adapters.items()})
    generator = torch.Generator().manual_seed(4)
    sampling = SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True)
    requests = []
    for index in range(10):
        name = [None, *adapters][index % 5]
        length = int(torch.randint(1, 50, (), generator=generator))
        prompt = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
        requests.append((prompt, name))
    submits = [
        Submit(f"r{i}", "t", prompt, sampling, adapters[name].ref if name else None)
        for i, (prompt, name) in enumerate(requests)
    ]
    core = make_core(load_model(tmp_path / "base"), tmp_path / "adapters" / "packed", max_batch_tokens=64)
    found = run(core, submits).tokens()
    expected = {(f"r{i}", 0): generate(*question) for i, question in enumerate(requests)}
    assert found == expected
    # Every adapter changes the answer: serving the base under its name would not pass.
    for i, (prompt, name) in enumerate(requests[:5]):
        assert name is None or expected[f"r{i}", 0] != generate(prompt, None)


def test_every_sapling_adapter_answers_as_under_peft(peft, tmp_path):
    """All of them and the base in one batch; bf16 weights are packed as they are, so fp32 must agree."""
    from transformers import AutoTokenizer

    base_dir = SAPLING / "base"
    tokenizer = AutoTokenizer.from_pretrained(base_dir)
    names = sorted(path.name for path in (SAPLING / "adapters").iterdir())
    assert len(names) >= 8
    config, digest = load_config(base_dir), base_digest(base_dir)
    refs = {name: pack(SAPLING / "adapters" / name, config, digest, tmp_path) for name in names}
    generate = oracle(peft, base_dir, {name: SAPLING / "adapters" / name for name in names})
    submits, prompts = [], {}
    for name in [None, *names]:
        message = {"role": "user", "content": SAPLING_PROMPTS.get(name, "the red fox runs home")}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        prompts[name] = tokenizer(text, add_special_tokens=False)["input_ids"]
        sampling = SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True)
        submits.append(Submit(str(name), "t", prompts[name], sampling, refs[name] if name else None))
    core = make_core(load_model(base_dir), tmp_path, num_slots=len(names), max_rows=len(submits))
    found = run(core, submits).tokens()
    assert found == {(str(name), 0): generate(prompt, name) for name, prompt in prompts.items()}
    assert len({tuple(tokens) for tokens in found.values()}) > len(names) // 2
