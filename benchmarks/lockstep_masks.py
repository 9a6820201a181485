"""Measures the CPU that masks of rows in lockstep take: each filled by itself, and kept by state.

    python -m benchmarks.lockstep_masks --tokenizer tokenizer.json --eos "<|eot_id|>" --out F

The worst case of `benchmarks.grammars`, without a model: all rows write a list of the same schema from its
beginning, and draw any allowed token, each as likely. One thread fills the masks. Both ways draw the same
tokens, in turns.

    cpu_ms     = of the process, from the call to the last mask, by step
    caller_ms  = of that, in the thread that plans steps
    filled     = masks by step that llguidance filled
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from benchmarks.grammars import LISTS, load_vocabulary
from benchmarks.report import write_report
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import CompiledGrammar
from engine.grammar.mask_cache import Row, Words
from engine.grammar.masks import MaskFiller, words_of
from engine.grammar.store import GrammarKey


class CountingFiller(MaskFiller):
    """Counts the masks that are filled."""

    num_filled = 0

    def _compute(self, rows: list[Row], bits_MW: Words) -> None:
        self.num_filled += len(rows)
        super()._compute(rows, bits_MW)


class Lockstep:
    """Rows of one grammar, whose masks are filled or kept."""

    def __init__(self, tokenizer: LLTokenizer, eos_ids: tuple[int, ...], *, keeps_masks: bool) -> None:
        self._grammar = _compiled(tokenizer, eos_ids, keeps_masks)
        self._filler = CountingFiller(1)
        self._num_words = words_of(tokenizer.vocab_size)

    def run(self, rows: int, steps: int, seed: int) -> dict[str, Any]:
        """Returns what each step took."""
        rng = np.random.default_rng(seed)
        constraints = [self._grammar.demand() for _ in range(rows)]
        bits_MW = np.zeros((rows, self._num_words), np.int32)
        cpu_ms, caller_ms, self._filler.num_filled = [], [], 0
        for _ in range(steps):
            began, called = time.process_time(), time.thread_time()
            filling = self._filler.start(constraints, bits_MW)
            caller_ms.append(1e3 * (time.thread_time() - called))
            filling.result()
            cpu_ms.append(1e3 * (time.process_time() - began))
            for constraint, mask_W in zip(constraints, bits_MW, strict=True):
                constraint.accept(_drawn(mask_W, rng))
        filled = round(self._filler.num_filled / steps, 1)
        return {"filled": filled, "cpu_ms": _summary(cpu_ms), "caller_ms": _summary(caller_ms)}


def _compiled(tokenizer: LLTokenizer, eos_ids: tuple[int, ...], keeps_masks: bool) -> CompiledGrammar:
    compiler = GrammarCompiler(tokenizer, eos_ids, lambda: None, keeps_masks=keeps_masks)
    compiler.start(GrammarKey("tenant", LISTS[0]))
    while not (taken := compiler.take()):
        time.sleep(0.01)
    [(_, grammar)] = taken
    assert isinstance(grammar, CompiledGrammar), grammar
    return grammar


def _drawn(mask_W: Words, rng: np.random.Generator) -> int:
    allowed: npt.NDArray[np.int64] = np.flatnonzero(np.unpackbits(mask_W.view(np.uint8), bitorder="little"))
    return int(rng.choice(allowed))


def _summary(values: list[float]) -> dict[str, float]:
    figures = {"mean": np.mean(values), "p50": np.median(values), "p90": np.percentile(values, 90)}
    return {name: round(float(value), 2) for name, value in (figures | {"max": max(values)}).items()}


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    vocabulary = Tokenizer.from_file(str(asked.tokenizer))
    eos_id = vocabulary.token_to_id(asked.eos)
    if eos_id is None:
        raise SystemExit(f"--eos {asked.eos}: {asked.tokenizer} has no such token; name one that ends a text")
    eos_ids = (eos_id,)
    tokenizer = load_vocabulary(vocabulary, eos_ids, vocabulary.get_vocab_size())
    kinds = {
        "every": Lockstep(tokenizer, eos_ids, keeps_masks=False),
        "kept": Lockstep(tokenizer, eos_ids, keeps_masks=True),
    }
    figures: dict[str, Any] = {"vocabulary": asked.vocabulary, "rows": asked.rows, "steps": asked.steps}
    # The first run of each has no masks kept and no text followed yet.
    runs = [
        {name: kind.run(asked.rows, asked.steps, seed) for name, kind in kinds.items()}
        for seed in range(asked.runs)
    ]
    return figures | {"runs": runs}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, help="JSON file to write")
    option("--tokenizer", type=Path, required=True, help="tokenizer.json of a model")
    option("--eos", default="<|eot_id|>", help="the token that ends a text")
    option("--vocabulary", default="a model's own", help="where --tokenizer is from, for the report")
    option("--rows", type=int, default=256)
    option("--steps", type=int, default=120)
    option("--runs", type=int, default=4)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parse(arguments)
    write_report(asked.out, measure(asked))


if __name__ == "__main__":
    main()
