"""The step model against every committed measurement on a GPU: its predictions cannot drift away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from benchmarks.shapes import shape
from benchmarks.step_model_fit import (
    RESULTS,
    SERVING,
    Row,
    decode_reports,
    decode_rows,
    mixed_rows,
    model_of,
    prefill_rows,
    serving_rows,
    tensor_parallel_rows,
)
from engine.planner.hardware import GPUS, all_reduce_seconds
from engine.planner.shapes import published_shape
from engine.planner.step_model import StepModel, StepWork

DECODE_BOUND = 0.10
PREFILL_BOUND = 0.05
MIXED_BOUND = 0.08
SERVING_BOUND = 0.10
TTFT_P99_BOUND = 0.25
"""Of 180 requests the two slowest decide it."""

LLAMA_8B = published_shape("llama-3.1-8b")
LLAMA_70B = published_shape("llama-3.1-70b")


@cache
def serving() -> tuple[Row, ...]:
    return tuple(serving_rows())


@pytest.mark.parametrize("row", decode_rows(), ids=lambda row: row.label)
def test_decode_steps_are_predicted(row: Row) -> None:
    assert abs(row.error) <= DECODE_BOUND


@pytest.mark.parametrize("row", prefill_rows(), ids=lambda row: row.label)
def test_prefill_is_predicted(row: Row) -> None:
    assert abs(row.error) <= PREFILL_BOUND


@pytest.mark.parametrize("row", tensor_parallel_rows(), ids=lambda row: row.label)
def test_decode_steps_of_several_gpus(row: Row) -> None:
    assert abs(row.error) < 0.1


@pytest.mark.parametrize("row", list(mixed_rows()), ids=lambda row: row.label)
def test_mixed_load_is_predicted(row: Row) -> None:
    assert abs(row.error) <= MIXED_BOUND


def test_open_loop_load_is_predicted() -> None:
    beyond = [
        f"{row.label}: {row.error:+.1%}"
        for row in serving()
        if abs(row.error) > (TTFT_P99_BOUND if row.label.endswith("p99") else SERVING_BOUND)
    ]
    assert not beyond


def test_every_measured_row_is_held_to() -> None:
    reports = decode_reports()
    assert len(reports) == len(list(RESULTS.glob("decode-*.json"))) >= 5
    for section, rows in (("rows", decode_rows()), ("prefill", prefill_rows()), ("mixed_load", mixed_rows())):
        measured = [row for report in reports for row in report.get(section, [])]
        assert len(list(rows)) == len([row for row in measured if "superseded" not in row]) > 0
    measured = json.loads((RESULTS / SERVING).read_text())["rows"]
    assert len({row.label.split(":")[0] for row in serving()}) == len(measured)


def models() -> Iterator[StepModel]:
    yield from (model_of(report) for report in decode_reports())
    yield StepModel(LLAMA_70B, "fp8", "auto", GPUS["h200"], tensor_parallel=4)
    yield StepModel(LLAMA_8B, "none", "auto", GPUS["h100"])


@pytest.mark.parametrize("model", models(), ids=lambda model: f"{model.quantization}-{model.tensor_parallel}")
def test_more_work_takes_longer(model: StepModel) -> None:
    rows = np.arange(1, 257)
    seconds = model.seconds(StepWork(rows=rows, context=200))
    assert (np.diff(seconds) > 0).all()
    assert float(seconds[-1]) == pytest.approx(float(model.seconds(StepWork(rows=256, context=200))))
    one = StepWork(rows=64, context=200)
    for more in (
        StepWork(rows=64, context=400),
        StepWork(rows=64, context=200, prompt_tokens=100, prompt_context=50),
        StepWork(rows=64, context=200, distinct=1, adapter_bytes=1e8, largest_rank=16),
    ):
        assert float(model.seconds(more)) > float(model.seconds(one))


def test_a_step_is_never_faster_than_its_bytes() -> None:
    model = StepModel(LLAMA_8B, "fp8", "auto", GPUS["h200"])
    for report in decode_reports():
        rows = [row for row in report["rows"] if "superseded" not in row]
        for row, predicted in zip(rows, report_predictions(report), strict=True):
            assert predicted.predicted * 1e3 > row["floor_ms"]
    assert float(model.seconds(StepWork(rows=1))) > 1.89e-3


def report_predictions(report: dict[str, object]) -> list[Row]:
    command = report["command"]
    reports = decode_reports()
    place = next(index for index, other in enumerate(reports) if other["command"] == command)
    sizes = [len([row for row in other["rows"] if "superseded" not in row]) for other in reports]
    begin = sum(sizes[:place])
    return list(decode_rows())[begin : begin + sizes[place]]


def test_all_reduces_are_those_measured() -> None:
    assert float(all_reduce_seconds(256 * 8192 * 2, 4)) == pytest.approx(28.5e-6)
    assert float(all_reduce_seconds(32 * 8192 * 2, 8)) == pytest.approx(12.5e-6)
    assert float(all_reduce_seconds(1, 2)) == pytest.approx(3.7e-6)
    assert float(all_reduce_seconds(2 * 33_554_432, 2)) == pytest.approx(192e-6)
    assert not all_reduce_seconds(np.array([1e3, 1e9]), 1).any()


def test_two_gpus_beat_one_where_bytes_dominate() -> None:
    one, two, eight = (
        float(StepModel(LLAMA_70B, "fp8", "auto", GPUS["h200"], size).seconds(StepWork(rows=1, context=128)))
        for size in (1, 2, 8)
    )
    assert eight < two < one
    assert two > one / 2
    assert eight > one / 8


def test_a_published_shape_is_the_benchmarks() -> None:
    assert shape("llama-3.1-8b") == LLAMA_8B
    assert LLAMA_70B.num_layers == 80
    assert LLAMA_70B.q_size == LLAMA_70B.hidden_size == 8192
