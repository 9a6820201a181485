"""Compares tokens per second with transformers + PEFT: mixed adapters in one batch, one CPU thread.

    python -m benchmarks.cpu_peft --out F [--base PATH] [--batch 32] [--prompt 32] [--output 64] [--rounds 7]

Both answer the same prompts greedily on the same fp32 weights; PEFT by `generate(adapter_names=[...])`, the
engine by EngineCore and ModelRunner. First both must give the same tokens: otherwise there are no figures,
and the exit code is 1. Then rounds of the engine on adapters, of the engine on the base alone and of PEFT
alternate, and each side is judged by its best round: other load can only slow a round down.

`benchmarks.serving` measures processes and HTTP.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapters.packing import pack
from benchmarks.random_llama import Shape, write_adapter, write_base
from benchmarks.report import write_report
from engine.core import EngineCore
from engine.device.cpu_runner import ModelRunner
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.pool import AdapterPool
from engine.lora.slots import SlotTable
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, SamplingParams, Submit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits

RANKS = (8, 16, 8, 16)
BLOCK_SIZE = 16
SHAPE = Shape(intermediate=704)
"""4 layers x 256, in Llama's proportions: its feed-forward part is 2.7 times as wide as its hidden size."""

Tokens = list[list[int]]


@dataclass(frozen=True)
class Work:
    """The requests that both sides answer."""

    prompts: np.ndarray
    """[batch, prompt length]"""
    names: list[str]
    """Adapter of each prompt."""
    output_len: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompts) * self.output_len


class Rootstock:
    """Our side: a whole engine without its process. Prefixes are not reused between rounds."""

    def __init__(self, model: Model, artifacts: Path, refs: dict[str, AdapterRef], work: Work) -> None:
        self._refs = refs
        self._work = work
        self._round = 0
        length = work.prompts.shape[1] + work.output_len
        num_blocks = 1 + len(work.prompts) * -(-length // BLOCK_SIZE)
        pool = AdapterPool(model.config, len(refs))

        def start_load(slot: int, ref: AdapterRef) -> None:
            pool.load(slot, PackedAdapter.read(artifact_path(artifacts, ref.digest), ref.digest))
            self._core.adapter_loaded(slot, ref.digest)

        batch = len(work.prompts)
        scheduler = Scheduler(
            EngineLimits(length, model.config.vocab_size, max(2048, batch), batch),
            BlockPool(num_blocks, BLOCK_SIZE),
            SlotTable(len(refs), start_load),
            model.config.eos_ids,
            [],
            EngineEnvironment("engine-0", "benchmark"),
        )
        runner = ModelRunner(model, pool, num_blocks, BLOCK_SIZE, batch, length)
        self._core = EngineCore(scheduler, runner)

    def answer(self, adapters: bool) -> Tokens:
        """All prompts to the end, on their adapters or on the base alone."""
        self._round += 1
        sampling = SamplingParams(self._work.output_len, temperature=0.0, ignore_eos=True)
        answers: Tokens = [[] for _ in self._work.names]
        for index, (prompt, name) in enumerate(
            zip(self._work.prompts.tolist(), self._work.names, strict=True)
        ):
            ref = self._refs[name] if adapters else None
            # A tenant per round: the prefix cache is salted by it, so that no round profits from the last.
            submit = Submit(str(index), f"round-{self._round}", prompt, sampling, ref)
            rejected = self._core.submit(submit)
            assert rejected is None, rejected
        while self._core.has_work:
            for chunk in self._core.step().chunks:
                answers[int(chunk.request_id)] += chunk.token_ids
        return answers


class Peft:
    """Their side: transformers' generate with one adapter name per row."""

    def __init__(self, base_dir: Path, adapter_dirs: dict[str, Path], work: Work) -> None:
        self._work = work
        with warnings.catch_warnings():
            # Theirs, about their next releases.
            warnings.simplefilter("ignore")
            import peft
            import transformers

            transformers.utils.logging.disable_progress_bar()
            transformers.utils.logging.set_verbosity_error()
            model = transformers.AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
            model.generation_config.eos_token_id = None
            model.generation_config.pad_token_id = 0
            first, *others = adapter_dirs
            wrapped = peft.PeftModel.from_pretrained(model, adapter_dirs[first], adapter_name=first)
            for name in others:
                wrapped.load_adapter(adapter_dirs[name], adapter_name=name)
        self._model = wrapped.eval()
        self.versions = {"transformers": transformers.__version__, "peft": peft.__version__}

    @torch.inference_mode()
    def answer(self) -> Tokens:
        prompts = torch.from_numpy(self._work.prompts)
        out = self._model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            adapter_names=self._work.names,
            max_new_tokens=self._work.output_len,
            do_sample=False,
        )
        return out[:, prompts.shape[1] :].tolist()


def timed(answer: Callable[[], Tokens]) -> tuple[float, Tokens]:
    began = time.perf_counter()
    tokens = answer()
    return time.perf_counter() - began, tokens


def compare(ours: Rootstock, theirs: Peft, work: Work, rounds: int) -> dict[str, Any] | None:
    """The figures, or None when the two sides disagree on any token."""
    expected = theirs.answer()
    found = ours.answer(adapters=True)
    wrong = [index for index, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
    if wrong:
        print(
            f"tokens differ from PEFT's in {len(wrong)} of {len(expected)} answers: no figures",
            file=sys.stderr,
        )
        return None
    ours.answer(adapters=False)
    seconds: dict[str, list[float]] = {"lora": [], "base": [], "peft": []}
    for _ in range(rounds):
        for name, answer in (
            ("lora", lambda: ours.answer(adapters=True)),
            ("base", lambda: ours.answer(adapters=False)),
            ("peft", theirs.answer),
        ):
            elapsed, tokens = timed(answer)
            assert name == "base" or tokens == expected, f"{name}: tokens changed between rounds"
            seconds[name].append(elapsed)
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "tok_s": round(work.num_tokens / best["lora"], 1),
        "peft_tok_s": round(work.num_tokens / best["peft"], 1),
        "base_tok_s": round(work.num_tokens / best["base"], 1),
        "speedup": round(best["peft"] / best["lora"], 2),
        "lora_overhead_percent": round(100 * (best["lora"] / best["base"] - 1), 1),
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--base", type=Path, help="base in Hugging Face layout; default: random, 4 layers x 256"
    )
    parser.add_argument("--batch", type=int, default=32, help="requests in the batch")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each side")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(asked, Path(scratch))
    if figures is None:
        return 1
    write_report(asked.out, figures)
    print(
        f"{figures['tok_s']} tok/s on adapters, {figures['base_tok_s']} on the base alone "
        f"({figures['lora_overhead_percent']} % overhead); "
        f"PEFT {figures['peft_tok_s']} tok/s: {figures['speedup']}x"
    )
    return 0


def measure(asked: argparse.Namespace, scratch: Path) -> dict[str, Any] | None:
    base_dir = asked.base or scratch / "base"
    if asked.base is None:
        write_base(base_dir, SHAPE)
    config = load_config(base_dir)
    shape = Shape.of(config)
    digest = base_digest(base_dir)
    adapter_dirs, refs = {}, {}
    for index, rank in enumerate(RANKS):
        name = f"a{index}-r{rank}"
        adapter_dirs[name] = scratch / name
        write_adapter(scratch / name, shape, rank, seed=index)
        # In fp32, so that the two sides hold the same numbers.
        refs[name] = pack(scratch / name, config, digest, scratch / "packed", "float32")
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, config.vocab_size, (asked.batch, asked.prompt))
    work = Work(prompts, [list(refs)[index % len(refs)] for index in range(asked.batch)], asked.output)
    theirs = Peft(base_dir, adapter_dirs, work)
    ours = Rootstock(load_model(base_dir), scratch / "packed", refs, work)
    figures = compare(ours, theirs, work, asked.rounds)
    if figures is None:
        return None
    model = (
        f"{config.architecture} {config.num_layers} x {config.hidden_size}, vocabulary {config.vocab_size}"
    )
    setting = {
        "model": model if asked.base is None else f"{asked.base.name}: {model}",
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "batch": asked.batch,
        "prompt_tokens": asked.prompt,
        "output_tokens": asked.output,
        "adapter_ranks": list(RANKS),
        "torch": torch.__version__,
        **theirs.versions,
    }
    return figures | {"setting": setting}


if __name__ == "__main__":
    sys.exit(main())
