"""The quality gate: what shuts it, and that Sapling's int8 base passes it on a small sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.quality import MAX_ACCURACY_LOSS, MAX_KL, MIN_TOP1, SAPLING, Bench, Fidelity, passes

GOOD = Fidelity(
    "sql", "sql", kl=0.001, top1=0.999, nll=0.1, nll_quantized=0.1, accuracy=1, accuracy_quantized=1
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
def bench() -> Bench:
    torch.set_num_threads(1)
    return Bench(SAPLING / "base", SAPLING / "adapters", "int8")


def test_saplings_int8_base_passes(bench: Bench) -> None:
    rows = [bench.fidelity(task, task, bench.conversations(task, 2)) for task in bench.names]
    assert len(rows) == 10
    assert passes(rows) == []
    assert any(row.kl > 0 for row in rows), "the two bases are the same one"


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
