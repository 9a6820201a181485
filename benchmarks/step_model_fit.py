"""Fits the step model's constants to the committed runs on a GPU, and prints the error of every row.

    python -m benchmarks.step_model_fit [--fit]

Without `--fit` it prints the errors of the constants in `engine.planner.step_model`. Decode steps and
prefill fit the constants; mixed load and open-loop serving, which `benchmarks.virtual_engine` replays, and
steps of several GPUs only check them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load_figures import Slo, summarise
from benchmarks.random_adapters import MIXED_RANKS
from benchmarks.virtual_engine import EngineSizes, VirtualEngine
from benchmarks.workload import Arrival, Lengths, draw_arrivals
from engine.planner.byte_counts import adapter_bytes
from engine.planner.hardware import GPUS
from engine.planner.shapes import published_shape
from engine.planner.step_model import FITTED, Constants, StepModel, StepWork

RESULTS = Path(__file__).resolve().parent / "results" / "h200"
TENSOR_PARALLEL_RESULTS = RESULTS.parent / "h200-x2"
SERVING = "serving-llama-3.1-8b-fp8.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure, and what the model says."""

    section: str
    label: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative: positive where the prediction is too high."""
        return self.predicted / self.measured - 1


def decode_reports() -> list[dict[str, Any]]:
    """Returns the committed reports of `benchmarks.decode`."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("decode-*.json"))]


def model_of(report: dict[str, Any], constants: Constants = FITTED, gpus: int = 1) -> StepModel:
    """Returns the model of the engine that a report measured."""
    return StepModel(
        published_shape(report["shape"]), report["quantization"], report["kv_dtype"], GPUS["h200"], gpus,
        constants=constants,
    )  # fmt: skip


def decode_rows(constants: Constants = FITTED) -> Iterator[Row]:
    """Decode steps: every row of every table that says what steps take today."""
    for report in decode_reports():
        for row in report["rows"]:
            if "superseded" not in row:
                yield _decode_row("decode", report, row, model_of(report, constants))


def tensor_parallel_rows(constants: Constants = FITTED) -> Iterator[Row]:
    """Decode steps of groups of GPUs, which fit nothing."""
    for path in sorted(TENSOR_PARALLEL_RESULTS.glob("tensor-parallel-*.json")):
        report = json.loads(path.read_text())
        for row in report["rows"]:
            yield _decode_row("tensor parallel", report, row, model_of(report, constants, row["gpus"]))


def _decode_row(section: str, report: dict[str, Any], row: dict[str, Any], model: StepModel) -> Row:
    context = report["prompt_len"] + (report["output_len"] - 1 + 1) / 2
    ranks, dtype = _ranks(row), row["adapter_dtype"] or "bf16"
    work = StepWork(
        rows=row["batch"], context=context, distinct=row["distinct"],
        adapter_bytes=sum(adapter_bytes(model.config, rank, dtype) for rank in ranks),
        largest_rank=max(ranks, default=0),
    )  # fmt: skip
    label = (
        f"{report['shape']} {report['quantization']} kv {report['kv_dtype']} "
        f"{row['batch']}/{row['distinct']} rank {row['rank']} {dtype}, {row.get('gpus', 1)} GPU"
    )
    return Row(section, label, row["step_ms"] / 1e3, float(model.seconds(work)))


def prefill_rows(constants: Constants = FITTED) -> Iterator[Row]:
    """Prompts alone, from the first to the first token of the last."""
    for report in decode_reports():
        model = model_of(report, constants)
        for row in report.get("prefill", []):
            label = f"{row['prompts']} x {row['prompt_len']}, {row['distinct']} adapters"
            arrivals = alike(row["prompts"], row["prompt_len"], 1, row["distinct"])
            yield Row("prefill", label, row["seconds"], _last_token(model, report, row, arrivals))


def mixed_rows(constants: Constants = FITTED) -> Iterator[Row]:
    """More requests than rows, all at once."""
    for report in decode_reports():
        model = model_of(report, constants)
        for row in report.get("mixed_load", []):
            label = (
                f"{row['requests']} of {row['prompt_len']}/{row['output_len']}, {row['distinct']} adapters"
            )
            arrivals = alike(row["requests"], row["prompt_len"], row["output_len"], row["distinct"])
            yield Row("mixed load", label, row["seconds"], _last_token(model, report, row, arrivals))


def serving_rows(constants: Constants = FITTED) -> Iterator[Row]:
    """Open-loop load: the arrivals that were drawn then are drawn again."""
    report = json.loads((RESULTS / SERVING).read_text())
    model = model_of(report, constants)
    for row in report["rows"]:
        replayed = replay(report, row, model)
        label = f"{row['registered']} adapters at {row['rate']} per second"
        yield Row("serving", f"{label}: tok/s", row["output_tok_s"], replayed["output_tok_s"])
        yield Row("serving", f"{label}: TPOT p50", row["tpot_ms"]["p50"], replayed["tpot_ms"]["p50"])
        if row["rate"] != "inf":
            for quantile in ("p50", "p99"):
                measured, predicted = row["ttft_ms"][quantile], replayed["ttft_ms"][quantile]
                yield Row("serving", f"{label}: TTFT {quantile}", measured, predicted)


def replay(report: dict[str, Any], row: dict[str, Any], model: StepModel) -> dict[str, Any]:
    """Returns the figures of a row of a serving report, in virtual time."""
    rate = math.inf if row["rate"] == "inf" else row["rate"]
    arrivals = draw_arrivals(
        report["seed"], rate, row["requests"], row["registered"],
        Lengths(**report["prompt_len"]), Lengths(**report["output_len"]), report["zipf"],
    )  # fmt: skip
    sizes = EngineSizes(
        max_batch_tokens=report["max_batch_tokens"],
        num_slots=report["slots"],
        adapter_bytes=adapter_bytes(model.config, report["rank"], report["adapter_dtype"]),
        rank=report["rank"],
        load_seconds=report["cold_start"]["load_ms"]["p50"] / 1e3,
    )
    resident = range(min(report["slots"], row["registered"]))
    notes = VirtualEngine(model, sizes, resident).run(arrivals)
    return summarise(notes, arrivals, Slo(report["slo"]["ttft_ms"], report["slo"]["tpot_ms"]))


def alike(count: int, prompt_len: int, output_len: int, distinct: int) -> list[Arrival]:
    """Requests of one size, all at the start, on adapters in turn."""
    return [Arrival(0.0, prompt_len, output_len, number % max(1, distinct)) for number in range(count)]


def _last_token(
    model: StepModel, report: dict[str, Any], row: dict[str, Any], arrivals: list[Arrival]
) -> float:
    ranks, dtype = _ranks(row), row["adapter_dtype"] or "bf16"
    sizes = EngineSizes(
        max_batch_tokens=report["max_batch_tokens"],
        adapter_bytes=float(np.mean([adapter_bytes(model.config, rank, dtype) for rank in ranks or (0,)])),
        rank=max(ranks, default=0),
        uneven=False,
    )
    notes = VirtualEngine(model, sizes, range(row["distinct"])).run(arrivals)
    return notes.steps[-1].ended_at


def _ranks(row: dict[str, Any]) -> list[int]:
    if not row["distinct"]:
        return []
    if row["rank"] == "mixed":
        return [MIXED_RANKS[number % len(MIXED_RANKS)] for number in range(row["distinct"])]
    return [int(row["rank"])] * row["distinct"]


def fit(rounds: int = 400) -> Constants:
    """Returns constants with smaller errors: moves one after the other while the sum of squares falls."""
    best, best_loss, step = FITTED, _loss(FITTED), 0.2
    for _ in range(rounds):
        moved = False
        for field in fields(Constants):
            for factor in (1 + step, 1 / (1 + step)):
                tried = replace(best, **{field.name: getattr(best, field.name) * factor})
                if (loss := _loss(tried)) < best_loss:
                    best, best_loss, moved = tried, loss, True
        if not moved:
            step /= 2
            if step < 1e-3:
                break
    return best


def _loss(constants: Constants) -> float:
    """The fourth power keeps the largest errors down."""
    rows = [*decode_rows(constants), *prefill_rows(constants)]
    return sum(row.error**4 for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit the constants first, and print them")
    constants = fit() if parser.parse_args().fit else FITTED
    for section in (decode_rows, prefill_rows, mixed_rows, serving_rows, tensor_parallel_rows):
        rows = list(section(constants))
        for row in rows:
            print(
                f"{row.section:15} {row.label:60} {row.measured:10.4f} {row.predicted:10.4f} {row.error:+.1%}"
            )
        print(f"{rows[0].section}: largest error {max(abs(row.error) for row in rows):.1%}")
    print(constants)


if __name__ == "__main__":
    main()
