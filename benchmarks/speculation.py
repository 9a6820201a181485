"""Measures what drafts save: tokens per second with them over those without, by streams and adapters.

    python -m benchmarks.speculation --out F                      sapling on a CPU, drafts from texts
    python -m benchmarks.speculation --shape llama-3.1-8b --quantization fp8 --out F       a GPU, synthetic
    python -m benchmarks.speculation --draft-adapters DIR --out F    sapling's tasks, drafts from adapters

The whole engine in one process: scheduler, runner, sampling and commit, no HTTP; greedy, each stream on an
adapter of its own. Drafters:

    texts again    drafts from the tenant's texts, which hold the same answers from the round before: what
                   retries, templates and unchanged files look like
    texts, new     the same drafter, and prompts and answers that never came before: what looking costs
    synthetic      for speed alone: drafts are accepted by a seeded random process, whatever the logits say
                   (`benchmarks.forced_acceptance`); all that random weights allow, or with `--synthetic`
    synthetic, draft adapter   the same with `--placeholders`: what a random draft adapter guesses is drafted

With `--draft-adapters` each stream asks questions of one of sapling's tasks, on its adapter, one after the
other, to the ends of the answers (`benchmarks.draft_adapter_streams`):

    texts, tasks          drafts from the tenant's texts, which are of the same task
    draft adapter         guesses of the base's draft adapter, and texts where they are likelier
    draft adapters, own   the same, each adapter having its own draft adapter where DIR has one

accepted = tokens that a stream gains per step, those without drafts included. Rounds with and without drafts
alternate in two engines, and each side is judged by its best round: other load can only slow a round down. On
a CPU seconds are the process's, on a GPU the clock's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.draft_adapter_streams import (
    NoTexts,
    PackedStreams,
    Stream,
    TaskEngine,
    TaskRound,
)
from benchmarks.forced_acceptance import ForcedAcceptance, Process, SyntheticTexts, process_of
from benchmarks.in_process import InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.random_adapters import AdapterLibrary, Registered
from benchmarks.random_base import random_base
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES, shape
from engine.batch import MAX_DRAFTS
from engine.device.runner_options import RunnerOptions
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.model.loading import load_model
from engine.model.model import Model
from engine.speculation.mixed_drafter import MixedDrafter
from engine.speculation.texts import Texts
from examples.sapling.tasks import TASKS

SAPLING = Path(__file__).resolve().parent.parent / "examples" / "sapling" / "weights" / "base"
MAX_ROWS = 256
MAX_GRAPH_ROWS = 128
"""Of the largest decode step that is captured: room for the drafts of few streams. All sizes of an engine
would take longer to capture than to measure."""
SYNTHETIC = "synthetic"
TASK_TEXTS, DRAFT_ADAPTER, OWN_ADAPTERS = "texts, tasks", "draft adapter", "draft adapters, own"
NOTE = "a random process accepts drafts, whatever the logits say: for speed alone, the answers mean nothing"


@dataclass(frozen=True, slots=True)
class Round:
    """One answer to all streams' prompts."""

    seconds: float
    num_steps: int
    answers: list[list[int]]

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))


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


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines on the same weights, without drafts and with them."""

    plain: Side
    drafting: Side
    library: AdapterLibrary
    forced: ForcedAcceptance | None
    """Where acceptance is synthetic."""


def compare(pair: Pair, kind: str, streams: int, asked: argparse.Namespace, vocab: int) -> dict[str, Any]:
    """Returns one row of the table."""
    adapters = pair.library.register(streams, (asked.rank,))
    rng = np.random.default_rng(streams)
    without: list[Round] = []
    found: list[Round] = []
    verified_before = (0, 0) if pair.forced is None else (pair.forced.num_verified, pair.forced.num_accepted)
    prompts: list[list[int]] = []
    for _ in range(asked.rounds + 1):
        if not prompts or kind != "texts again":
            prompts = random_prompts(rng, vocab, [asked.prompt] * streams)
        without.append(pair.plain.run(prompts, adapters))
        found.append(pair.drafting.run(prompts, adapters))
    # The first round makes, measures or learns things.
    best_without = min(without[1:], key=lambda one: one.seconds)
    best = min(found[1:], key=lambda one: one.seconds)
    row: dict[str, Any] = {
        "streams": streams,
        "distinct": streams,
        "drafter": kind,
        "synthetic": pair.forced is not None,
        "accepted": round(best.num_tokens / streams / best.num_steps, 2),
        "speedup": round(best_without.seconds / best.seconds, 3),
        "tok_s": round(best.num_tokens / best.seconds, 1),
        "tok_s_without": round(best_without.num_tokens / best_without.seconds, 1),
        "step_ms": round(1e3 * best.seconds / best.num_steps, 3),
        "step_ms_without": round(1e3 * best_without.seconds / best_without.num_steps, 3),
    }
    if pair.forced is None:
        pairs = [
            (a, b)
            for one, other in zip(without, found, strict=True)
            for a, b in zip(one.answers, other.answers, strict=True)
        ]
        row["same_answers"] = round(sum(a == b for a, b in pairs) / len(pairs), 3)
    else:
        num_verified = pair.forced.num_verified - verified_before[0]
        num_accepted = pair.forced.num_accepted - verified_before[1]
        row["tokens_per_verification"] = round(1 + num_accepted / num_verified, 2) if num_verified else None
    return row


@contextmanager
def engines(model: Model, asked: argparse.Namespace, process: Process | None) -> Iterator[Pair]:
    """Two engines, the one with drafts with a synthetic acceptance process if one is given."""
    library = AdapterLibrary(model.config)
    most = max(asked.streams)
    registered = library.register(most + 1, (asked.rank,))  # the last one guesses for the others
    on_gpu = model.device.type == "cuda"
    sizes = Sizes(
        max_rows=MAX_ROWS,
        max_len=asked.prompt + asked.output,
        max_batch_tokens=1024,
        kv_tokens=most * (asked.prompt + asked.output + 32),
        num_slots=most + 1,
        adapter_bytes=resident_bytes(library, registered) if on_gpu else 0,
    )
    options = RunnerOptions(max_graph_rows=max(MAX_GRAPH_ROWS, most))
    texts: Texts | None = None if process is None else SyntheticTexts(process)
    choice = None
    if asked.placeholders:
        texts, choice = NoTexts(), DraftAdapterChoice(DraftAdapter(registered[-1].ref, 0, asked.drafts))
    drafter = MixedDrafter(time.monotonic, texts)
    with (
        InProcessEngine(model, library, sizes, options) as without,
        InProcessEngine(
            model, library, sizes, options, drafter=drafter, draft_adapters=choice
        ) as with_drafts,
    ):
        forced = None
        if process is not None:
            forced = with_drafts.core.runner = ForcedAcceptance(with_drafts.core.runner, process)
        yield Pair(Side(without, asked.output), Side(with_drafts, asked.output), library, forced)


def compare_on_tasks(
    kind: str, asked: argparse.Namespace, model: Model, packed: PackedStreams
) -> Iterator[dict[str, Any]]:
    """Yields the rows of one kind of drafter on sapling's tasks."""
    choice = None if kind == TASK_TEXTS else packed.choice(with_own=kind == OWN_ADAPTERS)
    for streams in asked.streams:
        drafter = MixedDrafter(time.monotonic, NoTexts() if asked.no_texts else None)
        with TaskEngine(model, packed) as plain, TaskEngine(model, packed, drafter, choice) as drafting:
            # A single stream is measured on each adapter in turn.
            groups = [[one] for one in packed.streams[: len(TASKS)]]
            groups = groups if streams == 1 else [packed.streams[:streams]]
            yield _row_on_tasks(kind, groups, asked, plain, drafting)


def _row_on_tasks(
    kind: str,
    groups: Sequence[Sequence[Stream]],
    asked: argparse.Namespace,
    plain: TaskEngine,
    drafting: TaskEngine,
) -> dict[str, Any]:
    without: list[TaskRound] = []
    found: list[TaskRound] = []
    for engine in (plain, drafting):
        engine.load_all([one for streams in groups for one in streams])
    for number in range(asked.rounds + 1):
        for engine, rounds in ((plain, without), (drafting, found)):
            parts = [engine.run(streams, asked.questions, 1000 * number) for streams in groups]
            rounds.append(TaskRound.of(parts))
    best_without = min(without[1:], key=lambda one: one.seconds / one.num_tokens)
    best = min(found[1:], key=lambda one: one.seconds / one.num_tokens)
    rates = [one.num_tokens / one.seconds for one in (best, best_without)]
    pairs = [(one.answers, other.answers) for one, other in zip(without, found, strict=True)]
    same = [answers[name] == others[name] for answers, others in pairs for name in answers]
    stats, streams = drafting.core.stats, groups[0]
    return {
        "streams": len(streams),
        "distinct": len(streams),
        "drafter": kind,
        "synthetic": False,
        "accepted": round(best.num_tokens / len(streams) / best.num_steps, 2),
        "accepted_without": round(best_without.num_tokens / len(streams) / best_without.num_steps, 2),
        "speedup": round(rates[0] / rates[1], 3),
        "tok_s": round(rates[0], 1),
        "tok_s_without": round(rates[1], 1),
        "step_ms": round(1e3 * best.seconds / best.num_steps, 3),
        "step_ms_without": round(1e3 * best_without.seconds / best_without.num_steps, 3),
        "drafted": dict(stats.drafted_by_kind),
        "accepted_drafts": dict(stats.accepted_by_kind),
        "placeholders": stats.placeholder_tokens,
        "tokens": stats.completion_tokens,
        "same_answers": round(sum(same) / len(same), 3),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=["sapling", *SHAPES], default="sapling")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="not for sapling")
    parser.add_argument(
        "--streams", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8, 32]
    )
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--synthetic", action="store_true", help="with sapling, too")
    parser.add_argument("--tokens-per-step", type=float, default=3.0, help="of the synthetic process, mean")
    parser.add_argument("--drafts", type=int, default=4, help="of a row, of the synthetic process")
    parser.add_argument(
        "--placeholders", action="store_true", help="of the synthetic process: a draft adapter guesses"
    )
    parser.add_argument(
        "--draft-adapters",
        type=Path,
        metavar="DIR",
        help="folders of sapling's draft adapters: base, and one by the name of each adapter with its own",
    )
    parser.add_argument("--questions", type=int, default=4, help="of each stream and round, with them")
    parser.add_argument("--no-texts", action="store_true", help="with them: drafts come from them alone")
    asked = parser.parse_args(arguments)
    if asked.draft_adapters is not None and (asked.shape != "sapling" or asked.synthetic):
        parser.error("--draft-adapters: they are sapling's, and nothing about them is synthetic")
    if not all(0 < streams <= MAX_ROWS for streams in asked.streams):
        parser.error(f"--streams {asked.streams}: between 1 and {MAX_ROWS} each")
    if not 1 <= asked.drafts <= MAX_DRAFTS:
        parser.error(f"--drafts {asked.drafts}: between 1 and {MAX_DRAFTS}")
    try:
        asked.process = process_of(asked.tokens_per_step, asked.drafts)
    except ValueError as error:
        parser.error(f"--tokens-per-step: {error}")
    asked.synthetic = asked.synthetic or asked.placeholders or asked.shape != "sapling"
    return asked


def report_on_tasks(asked: argparse.Namespace) -> None:
    """Measures draft adapters on sapling's tasks: on a CPU, or on a GPU if it is named."""
    on_gpu = asked.device == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = load_model(SAPLING, asked.quantization, dtype, asked.device if on_gpu else "cpu")
    kinds = [DRAFT_ADAPTER, OWN_ADAPTERS] if asked.no_texts else [TASK_TEXTS, DRAFT_ADAPTER, OWN_ADAPTERS]
    rows: list[dict[str, Any]] = []
    num_streams = max(*asked.streams, len(TASKS) if 1 in asked.streams else 0)
    with PackedStreams(asked.draft_adapters, num_streams) as packed:
        for kind in kinds:
            for row in compare_on_tasks(kind, asked, model, packed):
                rows.append(row)
                print(row, flush=True)
                write_report(
                    asked.out, {"shape": asked.shape, "quantization": asked.quantization, "rows": rows}
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    asked = parse(arguments)
    torch.set_num_threads(1)
    if asked.draft_adapters is not None:
        report_on_tasks(asked)
        return
    if asked.shape == "sapling":
        model = load_model(SAPLING)
    else:
        model = random_base(shape(asked.shape), asked.quantization, pick_device(asked.device))
    kinds = ["texts, new", "texts again"]
    if asked.synthetic:
        kinds = [f"{SYNTHETIC}, {DRAFT_ADAPTER}" if asked.placeholders else SYNTHETIC]
    process = asked.process if asked.synthetic else None
    report: dict[str, Any] = {"shape": asked.shape, "quantization": asked.quantization, "rank": asked.rank}
    if process is not None:
        report["synthetic"] = {
            "note": NOTE,
            "drafts": process.num_drafts,
            "chance": round(process.chance, 4),
            "seed": process.seed,
            "tokens_per_step": round(process.tokens_per_step, 3),
        }
        print(f"synthetic: {NOTE}", flush=True)
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        with engines(model, asked, process) as pair:
            for streams in asked.streams:
                rows.append(compare(pair, kind, streams, asked, model.config.vocab_size))
                print(rows[-1], flush=True)
                write_report(asked.out, {**report, "rows": rows})


if __name__ == "__main__":
    main()
