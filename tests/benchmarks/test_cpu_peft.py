"""The benchmark against PEFT: no figures while tokens differ, and right arithmetic when they agree."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import cpu_peft
from benchmarks.cpu_peft import Work, compare, main
from tests.engine.runner.bases import write_base
from tests.support.arithmetic import arithmetic_threads

WORK = Work(np.zeros((2, 4), np.int64), ["a", "b"], output_len=3)
TOKENS = [[1, 2, 3], [4, 5, 6]]


class Clock:
    """Time that passes only while somebody answers."""

    def __init__(self) -> None:
        self.now = 0.0

    def side(self, seconds: float, tokens: list[list[int]]) -> SimpleNamespace:
        def answer(adapters: bool = True) -> list[list[int]]:
            self.now += seconds if adapters else seconds / 2
            return tokens

        return SimpleNamespace(answer=answer)


@pytest.fixture(autouse=True)
def threads_as_before():
    with arithmetic_threads(torch.get_num_threads()):
        yield


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(cpu_peft.time, "perf_counter", lambda: clock.now)
    return clock


def test_figures_are_tokens_over_seconds(clock):
    figures = compare(clock.side(0.5, TOKENS), clock.side(2.0, TOKENS), WORK, rounds=2)
    assert figures["tok_s"] == 12.0
    assert figures["peft_tok_s"] == 3.0
    assert figures["base_tok_s"] == 24.0
    assert figures["speedup"] == 4.0
    assert figures["lora_overhead_percent"] == 100.0
    assert figures["seconds"] == {"lora": [0.5, 0.5], "base": [0.25, 0.25], "peft": [2.0, 2.0]}


def test_there_are_no_figures_while_one_token_differs(clock, capsys):
    ours = clock.side(0.5, [[1, 2, 3], [4, 5, 7]])
    assert compare(ours, clock.side(2.0, TOKENS), WORK, rounds=2) is None
    assert "tokens differ from PEFT's in 1 of 2 answers" in capsys.readouterr().err


def test_a_red_gate_writes_no_report_and_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_peft, "measure", lambda asked, scratch: None)
    assert main(["--out", str(tmp_path / "report.json")]) == 1
    assert not (tmp_path / "report.json").exists()


def test_a_small_comparison_runs_from_end_to_end(tmp_path):
    write_base(tmp_path / "base")
    out = tmp_path / "report.json"
    base = ["--base", str(tmp_path / "base")]
    assert (
        main([*base, "--out", str(out), "--batch", "5", "--prompt", "7", "--output", "6", "--rounds", "1"])
        == 0
    )
    report = json.loads(out.read_text())
    assert report["tok_s"] > 0
    assert report["peft_tok_s"] > 0
    assert {"hardware", "commit", "command", "base_tok_s", "lora_overhead_percent"} <= report.keys()
    assert report["setting"]["model"] == "base: llama 2 x 64, vocabulary 211"
