"""The quality gate: what shuts it, and that Sapling's int8 base passes it on a small sample."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import quality, quality_random
from benchmarks.quality import (
    MAX_ACCURACY_LOSS,
    MAX_KL,
    MIN_TOP1,
    SAPLING,
    Bench,
    Fidelity,
    main,
    passes,
    summary,
)
from benchmarks.quality_free import PROMPTS, free_fidelity
from benchmarks.quality_random import random_rows
from benchmarks.scorer import Variant, answer, divergence, log_probs, scored_answer
from tests.support.arithmetic import arithmetic_threads

GOOD = Fidelity(
    "sql",
    "sql",
    kl=0.001,
    max_kl=0.01,
    top1=0.999,
    nll=0.1,
    nll_quantized=0.1,
    accuracy=1,
    accuracy_quantized=1,
)


def test_a_base_that_moves_little_passes() -> None:
    assert passes([GOOD]) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kl": MAX_KL * 1.01}, "KL"),
        ({"top1": MIN_TOP1 - 0.001}, "top-1"),
        ({"accuracy_quantized": 1 - MAX_ACCURACY_LOSS - 0.001}, "accuracy"),
        ({"kl": float("nan")}, "KL"),
    ],
)
def test_each_measure_can_shut_the_gate(change: dict[str, float], why: str) -> None:
    (reason,) = passes([GOOD, replace(GOOD, **change)])
    assert reason.startswith("sql: ")
    assert why in reason


def test_the_base_without_its_adapter_does_not_count() -> None:
    assert passes([replace(GOOD, adapter=None, kl=1.0)]) == []


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with arithmetic_threads(1):
        yield Bench(SAPLING / "base", SAPLING / "adapters", "int8")


def test_saplings_int8_base_passes(bench: Bench) -> None:
    rows = [bench.fidelity(task, task, bench.conversations(task, 1)) for task in bench.names]
    assert len(rows) == 11
    assert passes(rows) == []
    assert any(row.kl > 0 for row in rows), "the two bases are the same one"


@pytest.mark.parametrize(("adapter", "max_tokens"), [("upper-case", 64), ("upper-case", 3), (None, 3)])
@pytest.mark.parametrize("right", [1.0, 0.5, 0.0])
def test_an_answer_is_the_same_with_and_without_tokens_to_score(
    bench: Bench, adapter: str | None, max_tokens: int, right: float
) -> None:
    """With the right answer, one that goes wrong in its middle, and one that is wrong from its beginning."""
    (conversation,) = bench.conversations("upper-case", 1)
    start = conversation.answer_start
    prompt_ids, answer_ids = conversation.token_ids[:start], conversation.token_ids[start:]
    kept = int(right * len(answer_ids))
    token_ids = prompt_ids + answer_ids[:kept] + [prompt_ids[0]] * (len(answer_ids) - kept)
    scored, found = scored_answer(bench.quantized, token_ids, adapter, start, max_tokens)
    assert found == answer(bench.quantized, prompt_ids, adapter, max_tokens)
    assert (found == answer_ids) == (adapter is not None and max_tokens > len(answer_ids))
    assert torch.equal(scored, log_probs(bench.quantized, token_ids, adapter, start))


def test_free_prompts_move_the_base_more_than_its_tasks_do(bench: Bench) -> None:
    """Both are reported: the tasks' answers alone would flatter the quantised base."""
    free = free_fidelity(bench.exact, bench.quantized, bench._encode, PROMPTS[:6], max_tokens=16)
    tasks = bench.fidelity("upper-case", "upper-case", bench.conversations("upper-case", 2))
    assert free["prompts"] == 6
    assert 6 < free["positions"] <= 96
    assert tasks.kl < free["mean_kl"] < 0.2
    assert 0.8 < free["top1"] <= 1
    same = free_fidelity(bench.exact, bench.exact, bench._encode, PROMPTS[:2], max_tokens=4)
    assert (same["mean_kl"], same["top1"]) == (0, 1)


def test_a_ruined_base_does_not_pass(bench: Bench) -> None:
    """The gate measures the quantised base's weights, and not only its own arithmetic."""
    weight = bench.quantized.model._layers[0].down
    original = bench.quantized.model._layers
    try:
        bench.quantized.model._layers = [replace(layer, down=weight) for layer in original]
        row = bench.fidelity("upper-case", "upper-case", bench.conversations("upper-case", 2))
    finally:
        bench.quantized.model._layers = original
    assert passes([row])


def test_a_variant_is_named_by_what_is_quantised() -> None:
    assert Variant.parse("int8") == Variant("int8", "auto", "bf16")
    assert str(Variant.parse("none/auto/fp8")) == "none/auto/fp8"
    for wrong in ("fp3", "int8/fp3", "int8/auto/fp3"):
        with pytest.raises(ValueError, match="fp3"):
            Variant.parse(wrong)


def test_divergence_of_distributions_worked_out_by_hand() -> None:
    # In double precision: of a single one the sixth digit is the processor's, and the sum cancels most.
    exact = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64).log()
    moved = torch.tensor([[0.25, 0.75], [0.8, 0.2]], dtype=torch.float64).log()
    kl, same = divergence(exact, moved)
    assert kl[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl[1] == pytest.approx(0.9 * math.log(9 / 8) + 0.1 * math.log(1 / 2))
    assert same.tolist() == [0, 1]


def test_fp8_keys_and_values_need_a_gpu() -> None:
    with pytest.raises(ValueError, match="fp8 need a GPU"):
        random_rows("tiny", [Variant.parse("none/fp8")], 64)


def test_fp8_and_int4_run_by_their_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_random, "SEQUENCE_LEN", 32)
    fp8, int4 = random_rows("tiny", [Variant.parse("fp8"), Variant.parse("int4")], 64)
    assert 0 < fp8["mean_kl"] < int4["mean_kl"] < 1


def test_a_summary_is_over_what_is_sold() -> None:
    rows = [
        GOOD,
        replace(GOOD, kl=0.003, max_kl=0.5, accuracy_quantized=0.5),
        replace(GOOD, adapter=None, kl=9),
    ]
    line = summary("sapling", Variant("int8"), rows)
    assert (line["mean_kl"], line["max_kl"], line["accuracy"]) == (0.002, 0.5, 0.75)
    assert not line["gate"]["passed"]


def test_fp8_adapters_are_compared_on_the_same_base(bench: Bench) -> None:
    before = bench.quantized, bench.variant
    try:
        bench.use("none/auto/fp8")
        row = bench.fidelity("upper-case", "upper-case", bench.conversations("upper-case", 2))
    finally:
        bench.quantized, bench.variant = before
    assert 0 < row.max_kl < MAX_KL
    assert row.accuracy == row.accuracy_quantized == 1


def test_a_random_model_is_moved_more_by_int8_than_by_fp8_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_random, "SEQUENCE_LEN", 32)
    rows = random_rows("tiny", [Variant.parse(text) for text in ("none", "none/auto/fp8", "int8")], 64)
    same, adapters, base = rows
    assert same["mean_kl"] == same["max_kl"] == 0
    assert same["top1"] == 1
    assert same["tokens"] == 62
    assert 0 < adapters["mean_kl"] < base["mean_kl"]


def test_the_report_has_every_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of Sapling's, one conversation each, and six free prompts."""
    monkeypatch.setattr(quality, "free_fidelity", partial(free_fidelity, prompts=PROMPTS[:6], max_tokens=4))
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    for task in ("sql", "upper-case"):
        (adapters / task).symlink_to(SAPLING / "adapters" / task)
    out = tmp_path / "quality.json"
    arguments = ["--variants", "int8,none/auto/fp8", "--examples", "1", "--random-shape", "tiny"]
    arguments += ["--random-tokens", "128", "--adapters", str(adapters), "--out", str(out)]
    assert main(arguments) == 0
    report = json.loads(out.read_text())
    assert [(line["model"], line["quantization"], line["adapter_dtype"]) for line in report["summary"]] == [
        ("sapling", "int8", "bf16"), ("sapling", "none", "fp8"),
        ("tiny", "int8", "bf16"), ("tiny", "none", "fp8"),
    ]  # fmt: skip
    assert len(report["rows"]) == 8
    for line in report["summary"][:2]:
        assert [0 < line["free"][form]["positions"] <= 24 for form in ("chat", "completion")] == [True, True]
    assert report["gate"]["passed"]
