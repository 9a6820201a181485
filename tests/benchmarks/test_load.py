"""The open-loop load: its arithmetic by hand, and a whole run with more adapters than slots."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import serving
from benchmarks.load_figures import (
    Notes,
    Slo,
    StepNote,
    Timed,
    cold_against_warm,
    inter_token_ms,
    of_requests,
    steady_tok_s,
    summarise,
)
from benchmarks.workload import Arrival


def timed(arrived_at: float, *chunk_times: float, cold: bool = False) -> Timed:
    return Timed(arrived_at, len(chunk_times), cold, len(chunk_times), list(chunk_times))


def test_a_request_is_timed_from_its_arrival() -> None:
    request = timed(1.0, 1.25, 1.35, 1.65)
    assert request.ttft_ms == pytest.approx(250)
    assert request.tpot_ms == pytest.approx(200)
    assert request.e2e_ms == pytest.approx(650)
    assert timed(1.0, 1.5).tpot_ms == 0


def test_goodput_counts_requests_that_meet_both_objectives() -> None:
    requests = [
        timed(0.0, 0.4, 0.44),  # good
        timed(0.0, 0.6, 0.61),  # late to begin
        timed(0.0, 0.4, 0.46),  # slow to go on
        timed(2.0, 2.1, 4.0),  # very
    ]
    figures = of_requests(requests, Slo(ttft_ms=500, tpot_ms=50))
    assert figures["goodput"] == {"share": 0.25, "per_s": 0.25}
    assert figures["output_tok_s"] == 2.0  # 8 tokens in 4 seconds
    looser = of_requests(requests, Slo(ttft_ms=1000, tpot_ms=100))
    assert looser["goodput"]["share"] == 0.75


def test_throughput_is_taken_while_requests_wait() -> None:
    steps = [
        StepNote(1.0, 100, 4, 0, False),
        StepNote(2.0, 10, 4, 3, False),
        StepNote(3.0, 30, 4, 2, False),
        StepNote(4.0, 50, 4, 1, False),
        StepNote(9.0, 1, 1, 0, False),
    ]
    assert steady_tok_s(steps) == 40.0
    assert steady_tok_s(steps[:1]) is None


def test_steady_throughput_is_told_of_saturated_runs_alone() -> None:
    steps = [StepNote(1.0, 10, 4, 1, False), StepNote(2.0, 10, 4, 1, False)]
    notes = Notes({"a": timed(0.0, 1.0, 2.0)}, steps)
    assert summarise(notes, [Arrival(0.0, 8, 2, 0)], Slo())["steady_output_tok_s"] == 10.0
    assert summarise(notes, [Arrival(0.1, 8, 2, 0)], Slo())["steady_output_tok_s"] is None


def test_cold_requests_are_compared_with_warm_ones() -> None:
    requests = [timed(0, 0.010), timed(0, 0.012), timed(0, 0.019, cold=True), timed(0, 0.021, cold=True)]
    figures = cold_against_warm(requests)
    assert figures["requests"] == 2
    assert figures["added_ms"]["p50"] == pytest.approx(9)
    assert "added_ms" not in cold_against_warm(requests[:2])


def test_inter_token_times_are_split_by_what_was_loaded_meanwhile() -> None:
    steps = [StepNote(at, 1, 1, 0, loading) for at, loading in ((0.1, False), (0.2, True), (0.5, False))]
    figures = inter_token_ms([timed(0, 0.1, 0.2, 0.5)], steps)
    assert figures["during_loads"]["p50"] == pytest.approx(100)
    assert figures["otherwise"]["p50"] == pytest.approx(300)


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> dict:
    monkeypatch.setattr(sys, "argv", ["serving", "--out", str(out), *arguments])
    serving.main()
    return json.loads(out.read_text())


def test_more_adapters_than_slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = run(
        monkeypatch, tmp_path / "serving.json", "--engine", "in-process", "--shape", "tiny",
        "--quantization", "none", "--device", "cpu", "--registered", "4,12", "--slots", "4", "--rows", "6",
        "--rates", "40,inf", "--seconds", "0.4", "--saturating", "24", "--rank", "8", "--probes", "3",
        "--probe-rows", "2", "--mean-prompt", "16", "--mean-output", "6", "--max-prompt", "48",
        "--max-output", "12",
    )  # fmt: skip
    assert [(row["registered"], row["rate"]) for row in report["rows"]] == [
        (4, 40.0), (4, "inf"), (12, 40.0), (12, "inf"),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["requests"] == (24 if row["rate"] == "inf" else 16)
        assert row["output_tok_s"] > 0
        assert 0 <= row["goodput"]["share"] <= 1
        assert row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"] <= row["e2e_ms"]["p99"]
    few, many = report["rows"][1], report["rows"][3]
    assert few["loads"] == 0  # all of them are there from the start
    assert many["loads"] > 0
    assert many["cold"]["requests"] > 0
    assert many["distinct_asked"] > 4
    assert many["steady_output_tok_s"] > 0
    for length in ("mean_prompt_len", "mean_output_len"):
        assert few[length] == many[length]
    cold = report["cold_start"]
    assert cold["pairs"] == 3
    assert cold["background_rows"] == 2
    assert cold["cold_ttft_ms"]["p50"] > 0
    assert cold["added_ms"].keys() == cold["itl_ratio"].keys() == {"p50", "p99"}


def test_a_rate_below_zero_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "x.json", "--rates", "-1")
