"""The benchmark of grammars: a small model on this machine's CPU, and what its service is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import grammars, lockstep_masks
from benchmarks.grammar_service import KINDS, WITHOUT
from benchmarks.grammars import measure, parse
from benchmarks.tables import grammar_table

BASE = Path(__file__).resolve().parents[2] / "examples/sapling/weights/base"


def test_a_base_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "PROMPT_LEN", 16)
    monkeypatch.setattr(grammars, "OUTPUT_LEN", 33)
    monkeypatch.setattr(grammars, "WARM_RUNS", 1)
    wanted = ["--base", str(BASE), "--batches", "2:1:0:1", "--repeats", "1", "--no-thinking"]
    figures = measure(parse([*wanted, "--generations", "0", "--out", str(tmp_path / "F")]))
    assert (figures["shape"], figures["mask_threads"]) == ("sapling", 1)
    [row] = figures["rows"]
    assert row["same_tokens"], "the row without a grammar draws what it draws alone"
    assert row["step_ms"] > 0 < row["step_ms_free"]


def test_the_table_has_the_bar_of_its_device() -> None:
    row = {
        "rows": 32,
        "constrained": 32,
        "distinct": 0,
        "schemas": 8,
        "step_ms": 10.5,
        "step_ms_free": 10.0,
        "overhead": 0.05,
    }
    report = {
        "hardware": {"cpu": "a CPU"},
        "vocabulary": {"source": "the model's own"},
        "mask_threads": 1,
        "rows": [row],
    }
    on_cpu = grammar_table("../cpu/grammars.json")(lambda _: report)
    assert "| 32 | 32 | 8 | 0 | 10.5 | 10 | 5.0% | 10% |" in on_cpu
    assert "`grammars.json`, a CPU, vocabulary: the model's own, 1 thread for masks" in on_cpu
    on_gpu = grammar_table("grammars.json")(lambda _: report | {"hardware": {"cpu": "a CPU", "gpu": "a GPU"}})
    assert "| 5.0% | 3% |" in on_gpu
    assert "a GPU" in on_gpu


def test_requests_differ_where_they_are_to_be_new() -> None:
    for kind, fields in KINDS.items():
        is_new = json.dumps(fields("one")) != json.dumps(fields("two"))
        assert is_new == ("never" in kind)
    for kind, other in WITHOUT.items():
        messages = [KINDS[one]("name").get("tools") for one in (kind, other)]
        assert messages[0] == messages[1], "the prompts are the same"


def test_masks_in_lockstep() -> None:
    wanted = ["--tokenizer", str(BASE / "tokenizer.json"), "--eos", "<|end|>", "--out", "F"]
    figures = lockstep_masks.measure(lockstep_masks.parse([*wanted, "--rows=4", "--steps=6", "--runs=1"]))
    [run] = figures["runs"]
    assert run["every"]["filled"] == 4 >= run["kept"]["filled"]
