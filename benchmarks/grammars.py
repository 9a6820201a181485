"""Measures what grammars cost a decode step, and checks that every constrained text is of its schema.

    python -m benchmarks.grammars --out F

The whole engine in one process, random weights; everything is drawn at temperature 1. What a mask costs
depends on the vocabulary: `--tokenizer` takes a model's own. Without it one is trained on this machine's
Python library (`benchmarks.library_vocabulary`): its tokens are longer, its masks take about twice as long.

`--base examples/sapling/weights/base` measures that model on this machine's CPU, with its own tokenizer.

`rows`: the step of a batch of which `constrained` rows are held to a JSON Schema (a list of objects with
formats, bounds and patterns, longer than the measurement), and of the same batch without grammars, in turns.
There are `schemas` of them, whose objects have the same properties in different orders. With one schema all
rows write the same property at the same time: the slowest masks of all rows meet in the same steps. Masks are
kept by state; with `--fill-every-mask` they are not.

    step_ms       = (time of 129 tokens - time of 1 token) / 128, the median of several runs
    step_ms_free  = the same without grammars
    step_ms_first = the first run with the grammar: its compilations have followed no text yet
    same_tokens   = whether the rows without a grammar drew the same tokens in both

Every run draws other texts. Before the runs that count the grammar has followed WARM_RUNS of each row.

`thinking`: the same for a batch whose rows think to a budget: `budget_from` tokens, one more by row.

`schemas`: texts generated from random schemas (`benchmarks.random_schemas`) at temperatures from 0 to 2,
without and with adapters, each checked by a validator (jsonschema-rs). Cut are those that reached max_tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema_rs
import numpy as np
import torch
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from benchmarks.in_process import InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.library_vocabulary import EOS_ID, train
from benchmarks.random_adapters import AdapterLibrary, Registered
from benchmarks.random_base import random_base
from benchmarks.random_schemas import random_schema
from benchmarks.report import write_report
from benchmarks.shapes import SHAPES, shape
from engine.device.runner_options import RunnerOptions
from engine.grammar.tokenizer import load_tokenizer
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.protocol import Grammar, Reasoning, SamplingParams, Submit
from kernels.timing import copy_bandwidth

WARM_RUNS = 4
PROMPT_LEN = 128
OUTPUT_LEN = 129
BATCHES = ((32, 32, 0, 8), (256, 256, 0, 8), (256, 128, 0, 8), (256, 256, 64, 8), (256, 256, 0, 1))
"""(rows, constrained, distinct adapters, schemas)."""
TEMPERATURES = (0.0, 0.5, 1.0, 1.5, 2.0)
MAX_TEXT = 700
"""Tokens that a text of a random schema may take."""
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "created": {"type": "string", "format": "date-time"},
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "email": {"type": "string", "format": "email", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "state": {"enum": ["open", "closed", "pending"]},
    },
    "required": ["id", "created", "name", "email", "age", "score", "code", "state"],
    "additionalProperties": False,
}
BETWEEN = {"minItems": 60, "maxItems": 80}
THINK, END_OF_THINKING = "<think>", "</think>"
THINKING = ((256, 1_000), (256, 16))
"""(rows, budget of the first row): one more by row."""


def _list(begin: int) -> Grammar:
    """Returns the grammar of a list of records whose properties begin with another one."""
    properties = [*RECORD["properties"].items()]
    record = RECORD | {"properties": dict(properties[begin:] + properties[:begin])}
    return Grammar("json_schema", json.dumps({"type": "array", "items": record} | BETWEEN))


LISTS = [_list(begin) for begin in range(len(RECORD["properties"]))]
Held = Grammar | Reasoning | None
"""What a row is held to."""


@dataclass(slots=True)
class Answers:
    """What a run of requests drew."""

    seconds: float
    tokens: dict[str, list[int]]
    reasons: dict[str, str]


class Bench:
    """One engine, and the requests it runs."""

    def __init__(self, engine: InProcessEngine, tokenizer: Tokenizer, repeats: int) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._repeats = repeats
        self._rng = np.random.default_rng(0)

    def row(self, batch: int, constrained: int, distinct: int, schemas: int) -> dict[str, Any]:
        """Measures one row of the table: with and without grammars in turns, on the same prompts."""
        chosen = self._engine.library.register(distinct, (16,), "bf16")
        self._engine.make_resident(chosen)
        prompts = random_prompts(self._rng, self._engine.model.config.vocab_size, [PROMPT_LEN] * batch)
        grammars: list[Held] = [
            LISTS[index * len(LISTS) // batch % schemas] if _is_held(index, batch, constrained) else None
            for index in range(batch)
        ]
        free: list[Held] = [None] * batch
        figures, drawn = self._compare(prompts, grammars, free, chosen)
        unheld = [str(index) for index, grammar in enumerate(grammars) if grammar is None]
        return {
            "rows": batch,
            "constrained": constrained,
            "distinct": distinct,
            "schemas": schemas,
            **figures,
            "same_tokens": all(drawn["held"].tokens[name] == drawn["free"].tokens[name] for name in unheld),
        }

    def thinking(self, batch: int, budget_from: int) -> dict[str, Any]:
        """Measures a batch that thinks to budgets beside the same batch that does not think."""
        start_ids, end_ids = (tuple(self._tokenizer.encode(text).ids) for text in (THINK, END_OF_THINKING))
        prompts = random_prompts(self._rng, self._engine.model.config.vocab_size, [PROMPT_LEN] * batch)
        thinking: list[Held] = [
            Reasoning(THINK, END_OF_THINKING, start_ids, end_ids, is_open=True, budget=budget_from + index)
            for index in range(batch)
        ]
        figures, _ = self._compare(prompts, thinking, [None] * batch, [])
        return {"rows": batch, "budget_from": budget_from, **figures}

    def _compare(
        self,
        prompts: Sequence[list[int]],
        held: Sequence[Held],
        free: Sequence[Held],
        adapters: Sequence[Registered],
    ) -> tuple[dict[str, Any], dict[str, Answers]]:
        """Measures the step of a batch that is held to something and of one that is not, in turns."""
        for warm in (held, free):  # compiles the grammar, too
            self._answer(prompts, warm, 1, adapters)
        first_ms, _ = self._step_ms(prompts, held, adapters, run=0)
        for run in range(1, WARM_RUNS):
            self._answer(prompts, held, OUTPUT_LEN, adapters, run=run)
        steps: dict[str, list[float]] = {"held": [], "free": []}
        drawn: dict[str, Answers] = {}
        for run in range(WARM_RUNS, WARM_RUNS + self._repeats):
            for name, kind in (("held", held), ("free", free)):
                step_ms, drawn[name] = self._step_ms(prompts, kind, adapters, run)
                steps[name].append(step_ms)
        held_ms, free_ms = median(steps["held"]), median(steps["free"])
        figures = {
            "step_ms": round(held_ms, 3),
            "step_ms_free": round(free_ms, 3),
            "step_ms_first": round(first_ms, 3),
            "overhead": round(held_ms / free_ms - 1, 4),
            "all_step_ms": {name: [round(value, 3) for value in values] for name, values in steps.items()},
        }
        return figures, drawn

    def _step_ms(
        self, prompts: Sequence[list[int]], held: Sequence[Held], adapters: Sequence[Registered], run: int
    ) -> tuple[float, Answers]:
        single = self._answer(prompts, held, 1, adapters, run=run)
        answers = self._answer(prompts, held, OUTPUT_LEN, adapters, run=run)
        return 1e3 * (answers.seconds - single.seconds) / (OUTPUT_LEN - 1), answers

    def schemas(self, num_schemas: int, generations: int, distinct: int) -> dict[str, Any]:
        """Generates texts of random schemas and counts those that a validator refuses."""
        chosen = self._engine.library.register(distinct, (16,), "bf16")
        self._engine.make_resident(chosen)
        documents = [random_schema(seed) for seed in range(num_schemas)]
        validators = [jsonschema_rs.validator_for(document, validate_formats=True) for document in documents]
        vocab_size = self._engine.model.config.vocab_size
        grammars = [Grammar("json_schema", json.dumps(document)) for document in documents]
        began = time.perf_counter()
        invalid, cut, failed, num_tokens = [], 0, 0, 0
        for start in range(0, generations, 2048):
            numbers = range(start, min(generations, start + 2048))
            prompts = random_prompts(self._rng, vocab_size, [PROMPT_LEN // 4] * len(numbers))
            found = self._answer(
                prompts,
                [grammars[number % num_schemas] for number in numbers],
                MAX_TEXT,
                [*chosen, None],
                [TEMPERATURES[number // num_schemas % len(TEMPERATURES)] for number in numbers],
            )
            for index, number in enumerate(numbers):
                token_ids, reason = found.tokens[str(index)], found.reasons[str(index)]
                num_tokens += len(token_ids)
                if reason == "length":
                    cut += 1
                elif reason != "stop":
                    failed += 1
                    print(
                        "failed", number % num_schemas, self._tokenizer.decode(token_ids)[-200:], flush=True
                    )
                else:
                    problem = self._problem(validators[number % num_schemas], token_ids)
                    if problem is not None:
                        invalid.append({"schema": number % num_schemas, "problem": problem[:300]})
            print(
                "schemas", numbers.stop, {"invalid": len(invalid), "cut": cut, "failed": failed}, flush=True
            )
        return {
            "schemas": num_schemas,
            "generations": generations,
            "adapters": distinct,
            "temperatures": TEMPERATURES,
            "invalid": len(invalid),
            "cut": cut,
            "failed": failed,
            "tokens": num_tokens,
            "seconds": round(time.perf_counter() - began, 1),
            "problems": invalid[:20],
        }

    def _problem(self, validator: Any, token_ids: list[int]) -> str | None:
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        try:
            validator.validate(json.loads(text))
        except (ValueError, jsonschema_rs.ValidationError) as error:
            return f"{error}: {text}"
        return None

    def _answer(
        self,
        prompts: Sequence[list[int]],
        held: Sequence[Held],
        max_tokens: int,
        adapters: Sequence[Registered | None],
        temperatures: Sequence[float] | None = None,
        run: int = 0,
    ) -> Answers:
        """Runs all requests. Texts of another `run` are other ones."""
        gc.collect()
        core = self._engine.core
        answers = Answers(0.0, {}, {})
        began = time.perf_counter()
        for index, (prompt_ids, to) in enumerate(zip(prompts, held, strict=True)):
            adapter = adapters[index % len(adapters)] if adapters else None
            sampling = SamplingParams(
                max_tokens,
                temperature=1.0 if temperatures is None else temperatures[index],
                seed=run << 20 | index,
                ignore_eos=not isinstance(to, Grammar),
            )
            tenant = adapter.tenant if adapter else "tenant"
            ref = adapter.ref if adapter else None
            submit = Submit(
                str(index),
                tenant,
                prompt_ids,
                sampling,
                ref,
                submitted_at=time.time(),
                grammar=to if isinstance(to, Grammar) else None,
                reasoning=to if isinstance(to, Reasoning) else None,
            )
            rejected = core.submit(submit)
            assert rejected is None, rejected
            answers.tokens[str(index)] = []
        while len(answers.reasons) < len(prompts):
            for chunk in self._engine.step():
                answers.tokens[chunk.request_id] += chunk.token_ids
                if chunk.finish_reason is not None:
                    answers.reasons[chunk.request_id] = chunk.finish_reason
        answers.seconds = time.perf_counter() - began
        return answers


def _is_held(index: int, batch: int, constrained: int) -> bool:
    """Spreads the constrained rows over the batch."""
    return index * constrained % batch < constrained


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    device = pick_device("cpu" if asked.base is not None else asked.device)
    began = time.perf_counter()
    if asked.base is None:
        config = shape(asked.shape)
        vocabulary, eos_ids = _vocabulary(asked, config.vocab_size)
        config = replace(config, eos_ids=eos_ids)
    else:
        config = load_config(asked.base)
        vocabulary = Tokenizer.from_file(str(asked.base / "tokenizer.json"))
    tokenizer = load_vocabulary(vocabulary, config.eos_ids, config.vocab_size)
    loaded_s = time.perf_counter() - began
    library = AdapterLibrary(config)
    max_rows = max(batch for batch, *_ in asked.batches)
    num_slots = max(*(distinct for _, _, distinct, _ in asked.batches), asked.adapters)
    sizes = Sizes(
        max_rows,
        max(PROMPT_LEN + OUTPUT_LEN, PROMPT_LEN // 4 + MAX_TEXT),
        8192,
        max_rows * (PROMPT_LEN + MAX_TEXT),
        num_slots,
        resident_bytes(library, library.register(num_slots, (16,), "bf16")),
    )
    if asked.base is None:
        model = random_base(config, asked.quantization, device)
    else:
        model = load_model(asked.base, "none")
    figures: dict[str, Any] = {
        "shape": asked.shape if asked.base is None else asked.base.parts[-3],
        "quantization": model.quantization,
        "vocabulary": {
            "source": _source(asked),
            "tokens": vocabulary.get_vocab_size(),
            "seconds": round(loaded_s, 1),
        },
        "mask_threads": 1 if device.type == "cpu" else asked.mask_threads,
        "kept_masks": not asked.fill_every_mask,
        "copy_tb_s": round(copy_bandwidth(device) / 1e12, 3),
        "rows": [],
    }
    options = RunnerOptions(mask_threads=figures["mask_threads"])
    keeps_masks = not asked.fill_every_mask
    with InProcessEngine(model, library, sizes, options, tokenizer, keeps_masks=keeps_masks) as engine:
        bench = Bench(engine, vocabulary, asked.repeats)
        for batch in asked.batches:
            figures["rows"].append(bench.row(*batch))
            print("rows", figures["rows"][-1], flush=True)
        figures["thinking"] = [] if asked.no_thinking else [bench.thinking(*row) for row in THINKING]
        print("thinking", figures["thinking"], flush=True)
        if asked.generations:
            figures["schemas"] = bench.schemas(asked.schemas, asked.generations, asked.adapters)
            print(figures["schemas"], flush=True)
    return figures


def _vocabulary(asked: argparse.Namespace, vocab_size: int) -> tuple[Tokenizer, tuple[int, ...]]:
    """Returns (the vocabulary asked for, its ends of sequence)."""
    if asked.tokenizer is None:
        return train(vocab_size), (EOS_ID,)
    vocabulary = Tokenizer.from_file(str(asked.tokenizer))
    found = vocabulary.token_to_id(asked.eos)
    if found is None:
        raise SystemExit(f"--eos {asked.eos}: {asked.tokenizer} has no such token; name one that ends a text")
    return vocabulary, (found,)


def _source(asked: argparse.Namespace) -> str:
    if asked.base is not None:
        return "the model's own"
    return "trained on the Python library" if asked.tokenizer is None else str(asked.vocabulary)


def load_vocabulary(vocabulary: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> LLTokenizer:
    """Returns a vocabulary as grammars are followed with it."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.save(str(Path(folder) / "tokenizer.json"))
        return load_tokenizer(Path(folder), eos_ids, vocab_size)


def _batches(text: str) -> list[tuple[int, int, int, int]]:
    batches = [tuple(int(part) for part in batch.split(":")) for batch in text.split(",")]
    for batch in batches:
        if len(batch) != 4 or not 0 < batch[1] <= batch[0] or not 0 < batch[3] <= len(LISTS):
            raise argparse.ArgumentTypeError(
                f"{text}: ROWS:CONSTRAINED:DISTINCT:SCHEMAS, as in 256:128:0:{len(LISTS)}"
            )
    return batches  # type: ignore[return-value]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, help="JSON file to write")
    option("--base", type=Path, help="checkpoint of a small model to measure on this CPU")
    option("--shape", default="llama-3.1-8b", choices=list(SHAPES))
    option("--quantization", default="fp8")
    option(
        "--tokenizer", type=Path, help="tokenizer.json of a model of this vocabulary; without: trained here"
    )
    option("--eos", default="<|eot_id|>", help="the token of --tokenizer that ends a text")
    option("--vocabulary", default="a model's own", help="where --tokenizer is from, for the report")
    option("--batches", type=_batches, default=list(BATCHES), help="ROWS:CONSTRAINED:DISTINCT:SCHEMAS,...")
    option("--no-thinking", action="store_true", help="leave out the rows that think")
    option("--repeats", type=int, default=3, help="timed runs of each kind, of which the median counts")
    option("--schemas", type=int, default=1000, help="different schemas")
    option("--generations", type=int, default=10_000, help="texts generated from them; 0: none")
    option("--adapters", type=int, default=16, help="adapters that the texts are generated on, and the base")
    option("--mask-threads", type=int, default=14)
    option("--fill-every-mask", action="store_true", help="keep no masks by state, for a comparison")
    option("--device", default="auto")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parse(arguments)
    torch.manual_seed(0)
    write_report(asked.out, measure(asked))


if __name__ == "__main__":
    main()
