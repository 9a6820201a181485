"""Measures what drafts save: tokens per second with them over those without, by streams and adapters.

    python -m benchmarks.speculation --out F                      sapling on a CPU, drafts from texts
    python -m benchmarks.speculation --shape llama-3.1-8b --quantization fp8 --out F       a GPU, synthetic

The whole engine in one process: scheduler, runner, sampling and commit, no HTTP; greedy, each stream on an
adapter of its own. Drafters:

    texts again    drafts from the tenant's texts, which hold the same answers from the round before: what
                   retries, templates and unchanged files look like
    texts, new     the same drafter, and prompts and answers that never came before: what looking costs
    synthetic      for speed alone, with random weights: drafts are the tokens that a round without drafts
                   drew, each made wrong with a probability that leaves `SYNTHETIC_TOKENS` tokens per step

accepted = tokens that a stream gains per step. Rounds with and without drafts alternate in two engines, and
each side is judged by its best round: other load can only slow a round down. On a CPU seconds are the
process's, on a GPU the clock's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.in_process import InProcessEngine, Sizes, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.random_adapters import AdapterLibrary, Registered
from benchmarks.random_base import random_base
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES, shape
from engine.device.runner_options import RunnerOptions
from engine.model.loading import load_model
from engine.model.model import Model
from engine.request import Request
from engine.scheduling.drafter import Drafter, NoDrafts
from engine.speculation.budget import DraftBudget
from engine.speculation.drafter import MAX_ROWS, SuffixDrafter

SAPLING = Path(__file__).resolve().parent.parent / "examples" / "sapling" / "weights" / "base"
PROMPT_LEN = 64
SYNTHETIC_DRAFTS = 4
SYNTHETIC_TOKENS = 3.0
SYNTHETIC_CHANCE = 0.788
"""x + x^2 + x^3 + x^4 = 2: two of four drafts are accepted on average."""


class SyntheticDrafter(NoDrafts):
    """Drafts the tokens that a request drew before, wrong now and then."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self._budget = DraftBudget(time.monotonic)
        self._random = Random(1)

    def learn(self, prompt_ids: Sequence[int], answer: list[int]) -> None:
        """Notes what follows a prompt."""
        self._answers[tuple(prompt_ids)] = answer

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns whether the batch is one that may get drafts."""
        return bool(self._answers) and 0 < len(requests) <= MAX_ROWS

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns the same number of drafts for each request, where the budget has any."""
        if not self.is_waiting(requests):
            return {}
        chances = [SYNTHETIC_CHANCE**place for place in range(1, SYNTHETIC_DRAFTS + 1) for _ in requests]
        width = self._budget.choose(len(requests), chances[:num_open]) // len(requests)
        found = {request: self._guess(request, width) for request in requests}
        return {request: drafts for request, drafts in found.items() if drafts}

    def _guess(self, request: Request, width: int) -> list[int]:
        prompt_ids = request.group.submit.prompt_ids
        answer = self._answers.get(tuple(prompt_ids), [])
        begin = len(request.token_ids) - len(prompt_ids)
        if not begin or answer[:begin] != request.token_ids[len(prompt_ids) :]:
            return []  # its prompt is being computed, or sums that round otherwise have led elsewhere
        return [
            token_id if self._random.random() < SYNTHETIC_CHANCE else 1 - min(token_id, 1)
            for token_id in answer[begin : begin + width]
        ]

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned."""
        self._budget.note_step(num_rows, num_drafts, num_known)


@dataclass(frozen=True, slots=True)
class Round:
    """One answer to all streams' prompts."""

    seconds: float
    num_steps: int
    answers: list[list[int]]


class Side:
    """An engine with or without drafts."""

    def __init__(self, engine: InProcessEngine, output_len: int) -> None:
        self._engine = engine
        self._output_len = output_len
        self._clock = time.process_time if engine.model.device.type == "cpu" else time.perf_counter

    def run(self, prompts: Sequence[list[int]], adapters: Sequence[Registered]) -> Round:
        """Answers the prompts at the same time, stream i on adapter i."""
        self._engine.make_resident(adapters)
        steps = self._engine.core.stats.steps
        began = self._clock()
        names = [
            self._engine.submit(prompt_ids, self._output_len, adapter)
            for prompt_ids, adapter in zip(prompts, adapters, strict=True)
        ]
        answers: dict[str, list[int]] = {name: [] for name in names}
        for chunks in self._engine.drain():
            for chunk in chunks:
                answers[chunk.request_id] += chunk.token_ids
        seconds = self._clock() - began
        return Round(seconds, self._engine.core.stats.steps - steps, [answers[name] for name in names])


def compare(
    plain: Side,
    drafting: Side,
    drafter: Drafter,
    kind: str,
    adapters: Sequence[Registered],
    rounds: int,
    vocab: int,
) -> dict[str, Any]:
    """Returns one row of the table."""
    rng = np.random.default_rng(len(adapters))
    best: dict[str, Round] = {}
    prompts: list[list[int]] = []
    num_same = num_answers = 0
    for number in range(rounds + 1):
        if not prompts or kind == "texts, new":
            prompts = random_prompts(rng, vocab, [PROMPT_LEN] * len(adapters))
        without = plain.run(prompts, adapters)
        if isinstance(drafter, SyntheticDrafter):
            for prompt_ids, answer in zip(prompts, without.answers, strict=True):
                drafter.learn(prompt_ids, answer)
        found = drafting.run(prompts, adapters)
        num_same += sum(a == b for a, b in zip(without.answers, found.answers, strict=True))
        num_answers += len(prompts)
        if not number:
            continue  # whatever is made, measured or learned at first
        for name, one in (("without", without), ("with", found)):
            if name not in best or one.seconds < best[name].seconds:
                best[name] = one
    num_tokens = sum(map(len, best["with"].answers))
    return {
        "streams": len(adapters),
        "distinct": len(adapters),
        "drafter": kind,
        "accepted": round(num_tokens / len(adapters) / best["with"].num_steps, 2),
        "speedup": round(best["without"].seconds / best["with"].seconds, 3),
        "tok_s": round(num_tokens / best["with"].seconds, 1),
        "tok_s_without": round(num_tokens / best["without"].seconds, 1),
        "same_answers": round(num_same / num_answers, 3),
    }


@contextmanager
def engines(
    model: Model, asked: argparse.Namespace, drafter: Drafter
) -> Iterator[tuple[Side, Side, AdapterLibrary]]:
    """Two engines on the same weights, without drafts and with them."""
    library = AdapterLibrary(model.config)
    most = max(asked.streams)
    registered = library.register(most, (asked.rank,))
    on_gpu = model.device.type == "cuda"
    sizes = Sizes(
        max_rows=256,
        max_len=PROMPT_LEN + asked.output,
        max_batch_tokens=1024,
        kv_tokens=most * (PROMPT_LEN + asked.output + 32),
        num_slots=most,
        adapter_bytes=resident_bytes(library, registered) if on_gpu else 0,
    )
    options = RunnerOptions(max_graph_rows=max(32, *(size for size in asked.streams if size < 256)))
    with (
        InProcessEngine(model, library, sizes, options) as without,
        InProcessEngine(model, library, sizes, options, drafter=drafter) as with_drafts,
    ):
        yield Side(without, asked.output), Side(with_drafts, asked.output), library


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=["sapling", *SHAPES], default="sapling")
    parser.add_argument("--quantization", default="none")
    parser.add_argument(
        "--streams", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8, 32]
    )
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.shape == "sapling":
        model, kinds = load_model(SAPLING), ["texts, new", "texts again"]
    else:
        model = random_base(shape(asked.shape), asked.quantization, torch.device("cuda"))
        kinds = ["synthetic"]
    rows = []
    for kind in kinds:
        drafter = SyntheticDrafter() if kind == "synthetic" else SuffixDrafter(time.monotonic)
        with engines(model, asked, drafter) as (plain, drafting, library):
            for streams in asked.streams:
                adapters = library.register(streams, (asked.rank,))
                rows.append(
                    compare(plain, drafting, drafter, kind, adapters, asked.rounds, model.config.vocab_size)
                )
                print(rows[-1], flush=True)
                write_report(
                    asked.out, {"shape": asked.shape, "quantization": asked.quantization, "rows": rows}
                )


if __name__ == "__main__":
    main()
