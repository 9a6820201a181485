"""A row of sums as the lines of a bill."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from billing.totals import _usage_lines

BUCKET = datetime(2026, 11, 1, tzinfo=UTC)


def test_a_rows_lines_are_its_tokens_and_its_cost_by_kind() -> None:
    row = SimpleNamespace(
        bucket=BUCKET,
        model="sapling",
        service_tier="flex",
        prompt_tokens=100,
        cached_tokens=30,
        completion_tokens=7,
        cost=1000,
        cached_cost=90,
        output_cost=210,
        surcharge=0,
    )
    lines = _usage_lines(row, ("model",))
    assert [(line.kind, line.quantity, line.cost) for line in lines] == [
        ("input", 70, 700),
        ("cached_input", 30, 90),
        ("output", 7, 210),
    ]
    assert {(line.bucket, line.model, line.service_tier) for line in lines} == {(BUCKET, "sapling", "")}


def test_the_surcharge_of_a_shared_adapter_is_a_line_of_its_own() -> None:
    counts = {"prompt_tokens": 100, "cached_tokens": 30, "completion_tokens": 7}
    row = SimpleNamespace(bucket=BUCKET, cost=1000, cached_cost=90, output_cost=210, surcharge=400, **counts)
    lines = {line.kind: (line.quantity, line.cost) for line in _usage_lines(row, ())}
    assert lines["surcharge"] == (107, 400)
    assert lines["input"] == (70, 300)
    assert sum(cost for _, cost in lines.values()) == row.cost
