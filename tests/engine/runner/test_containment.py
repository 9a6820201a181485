"""What one tenant's adapter does to its own numbers stays with it: batch mates and later requests see
nothing."""

import pytest

from adapters.packing import pack
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import SamplingParams, Submit
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft
from tests.engine.runner.bases import write_adapters, write_base
from tests.engine.runner.rig import make_core, run

NUM_BLOCKS = 24
"""Few enough for blocks to change hands."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    path = tmp_path_factory.mktemp("containment")
    config = write_base(path / "base")
    adapters = {name: a.ref for name, a in write_adapters(path / "base", path / "adapters").items()}
    for name, std in (("wild", 1e3), ("overflowing", 1e25)):
        tensors = lora_tensors(config, LINEARS, 8, std=std)
        peft_dir = write_peft(path / name, tensors, r=8, target_modules=list(LINEARS))
        packed = path / "adapters" / "packed"
        adapters[name] = pack(peft_dir, config, base_digest(path / "base"), packed, "float32")
    return load_model(path / "base"), path / "adapters" / "packed", adapters


def requests(adapters, broken: str | None = None, tenant: str = "t") -> list[Submit]:
    """Six that ask for nothing odd, and in their midst one on a broken adapter."""
    greedy = SamplingParams(12, temperature=0.0, ignore_eos=True)
    drawn = SamplingParams(12, temperature=0.9, top_p=0.9, seed=4, ignore_eos=True, logprobs=1)
    found = []
    for index, name in enumerate([None, "small", "wide", "mlp", "mixed", None]):
        prompt = [3 + (7 * index + 11 * place) % 200 for place in range(9 + 4 * index)]
        adapter = adapters[name] if name else None
        found.append(Submit(f"good-{index}", tenant, prompt, greedy if index % 2 else drawn, adapter))
    if broken:
        prompt = [3 + 13 * place % 200 for place in range(21)]
        found.insert(3, Submit("broken", "t", prompt, greedy, adapters[broken]))
    return found


@pytest.mark.parametrize("bad", ["wild", "overflowing"])
def test_batch_mates_of_a_broken_adapter_answer_as_without_it(rig, bad):
    model, artifacts, adapters = rig
    expected = run(make_core(model, artifacts, num_blocks=NUM_BLOCKS), requests(adapters)).answers
    core = make_core(model, artifacts, num_blocks=NUM_BLOCKS)
    together = run(core, requests(adapters, bad)).answers
    broken = together.pop(("broken", 0))
    assert together == expected
    # Its blocks and rows pass to others: nothing of it may be left there. Another tenant, so that prompts are
    # computed whole again: a product of fewer rows may round otherwise.
    assert run(core, requests(adapters, tenant="u")).answers == expected
    if bad == "overflowing":
        assert broken.finish_reason == "error"
        assert broken.token_ids == []
        assert core.stats.errors == 1
    else:
        assert broken.finish_reason in ("length", "error")


def test_a_broken_adapter_leaves_nothing_in_the_prefix_cache(rig):
    model, artifacts, adapters = rig
    core = make_core(model, artifacts)
    for attempt in range(2):
        submit = Submit(f"a{attempt}", "t", list(range(3, 60)), SamplingParams(4), adapters["overflowing"])
        result = run(core, [submit])
        assert result.answers[f"a{attempt}", 0].finish_reason == "error"
        assert result.usage[f"a{attempt}"].usage.cached_tokens == 0
        assert result.usage[f"a{attempt}"].usage.completion_tokens == 0
