"""Forced acceptance of drafts: a benchmark of speed alone, in an engine that does all else for real."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks import draft_adapter_streams
from benchmarks.forced_acceptance import TOKENS, ForcedAcceptance, Process, process_of
from benchmarks.speculation import main, parse
from engine.batch import Batch, CompletedStep, Drafted, Scheduled, StepResult
from engine.outputs import RunnerCounters
from engine.speculation.budget import StepCosts
from examples.sapling import BASE
from tests.engine.runner.bases import write_draft_adapter


class Drawing:
    """A runner that draws token 9 everywhere."""

    depth = 1
    counters = RunnerCounters()

    def launch(self, batch: Batch) -> CompletedStep:
        drafts = {row: len(token_ids) for row, token_ids in batch.drafted}
        num_draws = sum(1 + drafts.get(share.row, 0) for share in batch.scheduled if share.samples)
        return CompletedStep(StepResult([9] * num_draws))


def step(random: Random) -> Batch:
    """A row without drafts, two with some, and a prompt that is not over."""
    drafted = [Drafted(row, random.choices(TOKENS, k=length)) for row, length in ((1, 4), (2, 2))]
    shares = [Scheduled(0, 1, True), Scheduled(1, 5, True), Scheduled(3, 7, False), Scheduled(2, 3, True)]
    return Batch(0, scheduled=shares, drafted=drafted)


def num_accepted(drafts: list[int], drawn: list[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(drafts, drawn, strict=False)) if pair[0] != pair[1]),
        len(drafts),
    )


def test_drafts_are_accepted_as_often_as_the_process_says_and_other_rows_are_left_alone() -> None:
    process = process_of(3.0, 4)
    forced = ForcedAcceptance(Drawing(), process)
    random = Random(3)
    gained = []
    for _ in range(4000):
        batch = step(random)
        ids = forced.launch(batch).result().token_ids
        assert len(ids) == 1 + 5 + 3
        assert ids[0] == 9, "the row without drafts"
        (_, four), (_, two) = batch.drafted
        assert all(token_id in TOKENS for token_id in ids[1 : 2 + num_accepted(four, ids[1:5])])
        gained.append((1 + num_accepted(four, ids[1:5]), 1 + num_accepted(two, ids[6:8])))
    means = [sum(column) / len(gained) for column in zip(*gained, strict=True)]
    assert means[0] == pytest.approx(3.0, abs=0.1)
    assert means[1] == pytest.approx(1 + process.chance + process.chance**2, abs=0.06)
    assert forced.num_verified == 8000
    assert forced.num_accepted == sum(sum(pair) - 2 for pair in gained)


def test_a_step_without_drafts_is_the_runners_own() -> None:
    batch = Batch(0, scheduled=[Scheduled(0, 1, True)])
    launched = ForcedAcceptance(Drawing(), Process(4, 1.0)).launch(batch)
    assert isinstance(launched, CompletedStep)
    assert launched.result().token_ids == [9]


def test_the_engine_runs_and_says_that_acceptance_is_synthetic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speculation.json"
    asked = ["--shape", "tiny", "--device", "cpu", "--streams", "2", "--rounds", "1", "--output", "48"]
    main([*asked, "--tokens-per-step", "4.9", "--out", str(out)])
    report = json.loads(out.read_text())
    assert report["synthetic"]["tokens_per_step"] == 4.9
    assert "mean nothing" in report["synthetic"]["note"]
    assert "synthetic: a random process accepts drafts" in capsys.readouterr().out
    (row,) = report["rows"]
    assert row["synthetic"] is True
    assert row["drafter"] == "synthetic"
    assert "same_answers" not in row, "they are not the model's"
    assert row["step_ms"] > 0
    assert row["step_ms_without"] > 0


def test_a_draft_adapters_guesses_are_accepted_by_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = StepCosts.add

    def steady(costs: StepCosts, num_rows: int, num_tokens: int, has_drafts: bool, seconds: float) -> None:
        measured(costs, num_rows, num_tokens, has_drafts, 1e-3 + 1e-5 * num_tokens)

    # On a busy machine a step with drafts may look too dear to be worth them.
    monkeypatch.setattr(StepCosts, "add", steady)
    out = tmp_path / "speculation.json"
    asked = ["--shape", "tiny", "--device", "cpu", "--streams", "2", "--rounds", "1", "--output", "64"]
    main([*asked, "--placeholders", "--tokens-per-step", "4.9", "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert row["drafter"] == "synthetic, draft adapter"
    assert row["tokens_per_verification"] > 2
    assert row["accepted"] > 1.2


def test_draft_adapters_answer_saplings_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_adapter_streams, "MAX_ANSWER", 10)
    for seed, name in enumerate(("base", "pirate")):
        write_draft_adapter(BASE, tmp_path / name, seed, ahead=2)
    out = tmp_path / "speculation.json"
    asked = ["--streams", "2", "--rounds", "1", "--questions", "1", "--no-texts"]
    main([*asked, "--draft-adapters", str(tmp_path), "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["streams"], row["distinct"]) for row in rows] == [(2, 2)] * 2
    assert [row["drafter"] for row in rows] == ["draft adapter", "draft adapters, own"]
    for row in rows:
        assert row["same_answers"] == 1.0
        assert row["placeholders"] > 0
        assert row["accepted"] > 0
        assert row["speedup"] > 0


def test_draft_adapters_are_saplings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", "x", "--shape", "tiny", "--draft-adapters", "y"])
    assert "they are sapling's" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--drafts", "9"], ["--tokens-per-step", "5.5"], ["--streams", "8,512"]], ids=lambda one: one[0]
)
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", "x", *wrong])
    assert wrong[0] in capsys.readouterr().err
