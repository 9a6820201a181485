"""The queue of one replica: against Erlang's formula, a virtual engine, and runs on a GPU."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.load_figures import Slo, summarise
from benchmarks.step_model_fit import RESULTS, SERVING, model_of
from benchmarks.virtual_engine import EngineSizes, VirtualEngine
from benchmarks.workload import Lengths, draw_arrivals
from engine.planner.byte_counts import adapter_bytes
from engine.planner.hardware import GPUS
from engine.planner.replica_queue import AdapterMemory, QueueFigures, ReplicaQueue
from engine.planner.shapes import published_shape
from engine.planner.step_model import StepModel, StepWork
from engine.planner.workload import AdapterLoad, EngineLimits, Load

MODEL = StepModel(published_shape("llama-3.1-8b"), "fp8", "auto", GPUS["h200"])
NO_ADAPTERS = AdapterMemory(0, 0, 0, 0.0, 0.0)


class ConstantSteps(StepModel):
    """Every step takes as long."""

    def seconds(self, work: StepWork) -> Any:
        return np.full(np.broadcast_shapes(np.shape(work.rows), np.shape(work.prompt_tokens)), 0.01)


def queue(model: StepModel, rows: int, load: Load, limits: EngineLimits | None = None) -> ReplicaQueue:
    return ReplicaQueue(model, limits or EngineLimits(), rows, load, AdapterLoad(), NO_ADAPTERS)


def erlang_c(servers: int, offered: float) -> float:
    """The chance that a customer of M/M/c waits."""
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.95])
def test_with_steps_that_never_change_it_is_erlangs_queue(load: float) -> None:
    model = ConstantSteps(MODEL.config, "fp8", "auto", MODEL.gpu)
    rows, output = 8, 50
    rate = load * rows / (output * 0.01)
    figures = queue(model, rows, Load(rate, 100, output)).figures(rate)
    assert figures.max_requests_per_s == pytest.approx(rows / (output * 0.01), rel=1e-6)
    assert figures.utilisation == pytest.approx(load, rel=1e-6)
    assert figures.wait_share == pytest.approx(erlang_c(rows, load * rows), rel=1e-6)
    assert figures.rows == pytest.approx(load * rows, rel=1e-6)


def test_what_a_replica_cannot_take() -> None:
    full = queue(MODEL, 64, Load(1, 150, 260))
    most = full.figures(1).max_requests_per_s
    assert full.figures(0.99 * most).ttft_p99 < math.inf
    beyond = full.figures(1.01 * most)
    assert beyond.utilisation > 1
    assert beyond.ttft_p50 == beyond.token_p99 == math.inf


def test_prompts_that_fill_every_step_bound_the_load() -> None:
    """Long prompts and one token out: the token budget is full long before the rows are."""
    figures = queue(MODEL, 256, Load(1, 4000, 1)).figures(1)
    a_step = float(MODEL.seconds(StepWork(rows=1, prompt_tokens=2048, prompt_context=2000)))
    assert figures.max_requests_per_s < 1.3 * 2048 / 4000 / a_step


@pytest.mark.parametrize("rate", [20.0, 40.0, 55.0])
def test_it_agrees_with_a_virtual_engine(rate: float) -> None:
    """Poisson arrivals of a minute and a half; the virtual engine knows every step."""
    prompt, output = Lengths(150, 1.1, 4, 1024), Lengths(300, 0.9, 4, 1024)
    arrivals = draw_arrivals(1, rate, round(90 * rate), 1, prompt, output)
    notes = VirtualEngine(MODEL, EngineSizes()).run(arrivals)
    simulated = summarise(notes, arrivals, Slo())
    outputs = np.array([arrival.output_len for arrival in arrivals])
    load = Load(
        rate, float(np.mean([arrival.prompt_len for arrival in arrivals])), float(outputs.mean()),
        float(outputs.var() / outputs.mean() ** 2),
    )  # fmt: skip
    figures = queue(MODEL, 256, load).figures(rate)
    assert 1e3 * figures.ttft_p50 == pytest.approx(simulated["ttft_ms"]["p50"], rel=0.15)
    assert 1e3 * figures.ttft_p99 == pytest.approx(simulated["ttft_ms"]["p99"], rel=0.35)
    assert 1e3 * figures.token_p50 == pytest.approx(simulated["itl_ms"]["otherwise"]["p50"], rel=0.15)
    assert 1e3 * figures.token_p99 == pytest.approx(simulated["itl_ms"]["otherwise"]["p99"], rel=0.35)


def measured(rate: float | str) -> list[dict[str, Any]]:
    report = json.loads((RESULTS / SERVING).read_text())
    return [{**report, **row} for row in report["rows"] if row["rate"] == rate]


def planned(row: dict[str, Any], rate: float) -> QueueFigures:
    """What the planner says of one replica with a measured run's load."""
    model = model_of(row)
    arrivals = draw_arrivals(
        row["seed"], 30.0, row["requests"], row["registered"],
        Lengths(**row["prompt_len"]), Lengths(**row["output_len"]), row["zipf"],
    )  # fmt: skip
    outputs = np.array([arrival.output_len for arrival in arrivals])
    load = Load(
        rate, row["mean_prompt_len"], row["mean_output_len"], float(outputs.var() / outputs.mean() ** 2)
    )
    one = adapter_bytes(model.config, row["rank"])
    memory = AdapterMemory(one, row["slots"], 1024, row["cold_start"]["load_ms"]["p50"] / 1e3, 0.0)
    replica = ReplicaQueue(
        model, EngineLimits(), 256, load, AdapterLoad(row["registered"], row["rank"]), memory
    )
    return replica.figures(rate)


@pytest.mark.parametrize("row", measured(30.0), ids=lambda row: str(row["registered"]))
def test_it_agrees_with_runs_on_a_gpu_at_30_requests_a_second(row: dict[str, Any]) -> None:
    """Each run is six seconds of arrivals: the engine is not yet as full as after a minute."""
    figures = planned(row, 30.0)
    assert 1e3 * figures.ttft_p50 == pytest.approx(row["ttft_ms"]["p50"], rel=0.2)
    assert 1e3 * figures.ttft_p99 == pytest.approx(row["ttft_ms"]["p99"], rel=0.4)
    assert 1e3 * figures.token_p50 == pytest.approx(row["itl_ms"]["otherwise"]["p50"], rel=0.2)


@pytest.mark.parametrize("row", measured("inf"), ids=lambda row: str(row["registered"]))
def test_the_largest_load_is_the_throughput_on_a_gpu(row: dict[str, Any]) -> None:
    figures = planned(row, 10.0)
    tokens_per_s = figures.max_requests_per_s * row["mean_output_len"]
    assert tokens_per_s == pytest.approx(row["steady_output_tok_s"], rel=0.15)
