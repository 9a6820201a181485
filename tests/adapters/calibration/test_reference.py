"""The streamed reference says what transformers and PEFT say, in any number of passes, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.calibration.errors import SourceInvalid
from adapters.calibration.reference import Reference, passes
from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores
from adapters.packing import pack
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.model.config import load_config
from engine.model.weights import base_digest
from tests.adapters.calibration.sapling import WEIGHTS, drop_rslora, pack_all, scale_alpha, write_adapter
from tests.adapters.peft_files import lora_tensors, write_peft
from tests.engine.runner.bases import ARCHITECTURES, VOCAB_SIZE, write_adapters, write_base

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def peft() -> Iterator[Any]:
    """Imported here because it takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
        import transformers

        transformers.utils.logging.disable_progress_bar()
        yield peft


def random_samples(vocab_size: int, count: int = 6) -> list[Sample]:
    generator = torch.Generator().manual_seed(2)
    samples = []
    for line in range(1, count + 1):
        token_ids = torch.randint(0, vocab_size, (5 + 7 * line,), generator=generator).tolist()
        samples.append(Sample(line, token_ids, 1 + 2 * line))
    return samples


def refer(reference: Reference, samples: list[Sample], pass_bytes: int = 1 << 30) -> dict[str, list[Scores]]:
    found: dict[str, list[Scores]] = {"base": [], "adapter": [], "doubled": []}
    with reference:
        for rows in passes(samples, reference.config, pass_bytes):
            states = reference.begin([samples[row] for row in rows])
            for layer in range(reference.config.num_layers):
                reference.layer(states, layer)
            for stream, scores in reference.scores(states).items():
                found[stream] += scores
    return found


def test_twice_the_scale_is_what_twice_the_alpha_gives(tmp_path: Path) -> None:
    samples = random_samples(4096)
    plain, twice = (
        write_adapter(tmp_path / str(factor), "add-numbers", scale_alpha(factor)) for factor in (1, 2)
    )
    found = refer(Reference(WEIGHTS / "base", plain, doubled=True), samples)
    assert found["doubled"] == refer(Reference(WEIGHTS / "base", twice), samples)["adapter"]
    assert found["doubled"] != found["adapter"]


def check(peer: Any, samples: list[Sample], found: list[Scores]) -> None:
    for sample, scores in zip(samples, found, strict=True):
        with torch.inference_mode():
            logits = peer(torch.tensor([sample.token_ids])).logits[0]
        rows = logits.log_softmax(-1)[sample.start - 1 : -1]
        targets = torch.tensor(sample.token_ids[sample.start :])
        wanted = rows.gather(1, targets[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(scores.log_probs), wanted, rtol=0, atol=TOLERANCE)
        assert scores.likeliest == rows.argmax(-1).tolist()


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_scores_are_those_of_transformers_and_peft(peft: Any, tmp_path: Path, architecture: str) -> None:
    from transformers import AutoModelForCausalLM

    write_base(tmp_path / "base", architecture, seed=3)
    samples = random_samples(VOCAB_SIZE)
    for name, adapter in write_adapters(tmp_path / "base", tmp_path / "adapters").items():
        found = refer(Reference(tmp_path / "base", adapter.peft_dir), samples)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
        check(base, samples, found["base"])
        wrapped = peft.PeftModel.from_pretrained(base, adapter.peft_dir).eval()
        check(wrapped, samples, found["adapter"])
        assert found["base"] != found["adapter"], name


def test_a_tied_base_with_a_head_of_its_own(peft: Any, tmp_path: Path) -> None:
    """Scored with the head that transformers uses, and the engine."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    assert write_base(tmp_path / "base", "qwen2").tie_embeddings
    file = tmp_path / "base/model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.flip(0).contiguous()}, file, {"format": "pt"})
    adapter = write_adapters(tmp_path / "base", tmp_path / "adapters")["small"]
    samples = random_samples(VOCAB_SIZE)
    found = refer(Reference(tmp_path / "base", adapter.peft_dir), samples)
    check(AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval(), samples, found["base"])


def test_a_checkpoint_in_bfloat16_and_rslora(peft: Any) -> None:
    """Sapling: bf16 weights, tied embeddings; sort-numbers has rsLoRA, add-numbers patterns of rank and
    alpha."""
    from transformers import AutoModelForCausalLM

    samples = random_samples(4096)
    for name in ("sort-numbers", "add-numbers"):
        found = refer(Reference(WEIGHTS / "base", WEIGHTS / "adapters" / name), samples)
        base = AutoModelForCausalLM.from_pretrained(WEIGHTS / "base", dtype=torch.float32)
        wrapped = peft.PeftModel.from_pretrained(base, WEIGHTS / "adapters" / name).eval()
        check(wrapped, samples, found["adapter"])


def test_many_small_passes_say_what_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the passes, nor the rows a layer takes at a time, nor the pieces of the head change a score."""
    config = write_base(tmp_path / "base")
    adapter = write_adapters(tmp_path / "base", tmp_path / "adapters")["wide"]
    samples = random_samples(VOCAB_SIZE)
    whole = refer(Reference(tmp_path / "base", adapter.peft_dir), samples)
    assert len(passes(samples, config, 1)) == len(samples)
    monkeypatch.setattr("adapters.calibration.reference.CHUNK_BYTES", 16_000)
    pieces = refer(Reference(tmp_path / "base", adapter.peft_dir), samples, pass_bytes=1)
    for stream, scores in whole.items():
        for one, other in zip(scores, pieces[stream], strict=True):
            torch.testing.assert_close(
                torch.tensor(one.log_probs), torch.tensor(other.log_probs), rtol=0, atol=1e-5
            )
            assert one.likeliest == other.likeliest


def test_an_adapter_that_is_not_the_one_that_was_packed_is_refused(tmp_path: Path) -> None:
    config = write_base(tmp_path / "base")
    tensors = lora_tensors(config, ["q_proj", "v_proj"], 4)
    tensors.pop("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight")
    peft_dir = write_peft(tmp_path / "half", tensors)
    with (
        pytest.raises(SourceInvalid, match=r"layers\.1\.self_attn\.v_proj\.lora_B"),
        Reference(tmp_path / "base", peft_dir),
    ):
        pass
    (peft_dir / "adapter_model.safetensors").write_bytes(b"\0" * 64)
    with (
        pytest.raises(SourceInvalid, match=r"adapter_model\.safetensors"),
        Reference(tmp_path / "base", peft_dir),
    ):
        pass


def test_what_rounding_does_is_measured_per_module(tmp_path: Path) -> None:
    peft_dir = write_adapter(tmp_path / "adapter", "reverse-words")
    packed = {
        dtype: PackedAdapter.read(artifact_path(tmp_path / "out", ref.digest))
        for dtype, ref in pack_all(peft_dir, tmp_path / "out").items()
    }
    reference = Reference(WEIGHTS / "base", peft_dir, packed)
    refer(reference, random_samples(4096))
    modules = reference.contribution.modules()
    assert [(m.layer, m.module) for m in modules] == [
        (layer, name) for layer in range(8) for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    ]
    for module in modules:
        assert 0 < module.share < 10
        assert module.errors["bfloat16"] == 0, "this adapter is stored in bf16: nothing is rounded"
        assert 0.005 < module.errors["float8_e4m3"] < 0.06, "three bits of mantissa"


def test_rounding_is_measured_against_the_weights_as_they_were_uploaded(tmp_path: Path) -> None:
    """fp32 weights: bf16 is off by 2^-9 or so, fp32 by nothing but the order of sums."""
    config = write_base(tmp_path / "base")
    peft_dir = write_peft(tmp_path / "adapter", lora_tensors(config, ["q_proj", "v_proj"], 4))
    digest = base_digest(tmp_path / "base")
    refs = {dtype: pack(peft_dir, config, digest, tmp_path, dtype) for dtype in ("bfloat16", "float32")}  # type: ignore[arg-type]
    packed = {dtype: PackedAdapter.read(artifact_path(tmp_path, ref.digest)) for dtype, ref in refs.items()}
    reference = Reference(tmp_path / "base", peft_dir, packed)
    refer(reference, random_samples(VOCAB_SIZE))
    for module in reference.contribution.modules():
        assert 5e-4 < module.errors["bfloat16"] < 5e-3
        assert module.errors["float32"] < 1e-5


def test_a_dropped_rslora_flag_is_seen_in_what_the_adapter_adds(tmp_path: Path) -> None:
    good, broken = (
        Reference(
            WEIGHTS / "base",
            path := write_adapter(tmp_path / name, "sort-numbers", breakage),
            {
                "bfloat16": PackedAdapter.read(
                    artifact_path(tmp_path, pack_all(path, tmp_path)["bfloat16"].digest)
                )
            },
        )
        for name, breakage in (("good", None), ("broken", drop_rslora))
    )
    for reference in (good, broken):
        refer(reference, random_samples(4096))
    ratio = good.contribution.modules()[0].share / broken.contribution.modules()[0].share
    assert ratio == pytest.approx(32**0.5, rel=1e-3), "alpha / sqrt(32) instead of alpha / 32"


MEASURE = """
import os, sys
from pathlib import Path
import torch
from adapters.calibration.reference import Reference, passes
from adapters.calibration.samples import Sample
torch.set_num_threads(1)
samples = [Sample(1, list(range(3, 67)), 8)] * 3
folders = [Path(folder) for folder in sys.argv[1:]]
for base, adapter in zip(folders[::2], folders[1::2]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    with Reference(base, adapter) as reference:
        states = reference.begin(samples)
        for layer in range(reference.config.num_layers):
            reference.layer(states, layer)
        reference.scores(states)
        print(reference.memory.peak_bytes, flush=True)
    os._exit(0)
"""
"""Each in a process of its own, that begins with the same memory."""


GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""So that the C library returns what is freed at once, and what is measured is what is held."""


def _peaks(*folders: Path) -> list[int]:
    """Of pairs of a base and an adapter."""
    shown = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, folders)],
        env=os.environ | GIVE_BACK,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in shown.stdout.splitlines()]


def test_memory_does_not_grow_with_the_number_of_layers(tmp_path: Path) -> None:
    """Four layers and sixteen: the same peak, which is far below the weights of the larger."""
    folders: list[Path] = []
    for num_layers in (4, 16):
        base = tmp_path / f"base-{num_layers}"
        # In bf16, so that a layer's weights in fp32 are memory of the process, not pages of the file.
        config = write_base(
            base,
            dtype=torch.bfloat16,
            hidden_size=512,
            intermediate_size=2048,
            num_hidden_layers=num_layers,
            head_dim=128,
        )
        folders += [base, write_peft(tmp_path / f"adapter-{num_layers}", lora_tensors(config, rank=4))]
    # What the process holds besides differs from run to run by a few hundred kilobytes.
    few, many, few_again, many_again = _peaks(*folders, *folders)
    few, many = min(few, few_again), min(many, many_again)
    weights = (tmp_path / "base-16/model.safetensors").stat().st_size
    assert many < few * 1.1
    assert many < weights / 4, (few, many, weights)
    assert load_config(tmp_path / "base-16").num_layers == 16
