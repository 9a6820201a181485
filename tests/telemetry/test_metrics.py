"""The process's own metrics."""

from __future__ import annotations

from prometheus_client import generate_latest

from telemetry.metrics import ServingMetrics


def test_two_processes_in_one_share_nothing() -> None:
    first, second = ServingMetrics(), ServingMetrics()
    first.failed("invalid_value")
    assert b'rootstock_errors_total{code="invalid_value"} 1.0' in generate_latest(first.registry)
    assert b"invalid_value" not in generate_latest(second.registry)


def test_a_single_token_has_no_pace() -> None:
    metrics = ServingMetrics()
    metrics.answered("default", 0.5, None)
    text = generate_latest(metrics.registry)
    assert b'rootstock_request_duration_seconds_count{service_tier="default"} 1.0' in text
    assert b"rootstock_time_per_output_token_seconds_count{" not in text


def test_tokens_are_counted_by_class_and_kind() -> None:
    metrics = ServingMetrics()
    metrics.billed("flex", 10, 4, 7)
    metrics.billed("flex", 1, 0, 1)
    text = generate_latest(metrics.registry)
    for kind, count in (("prompt", 11), ("cached", 4), ("completion", 8)):
        assert f'rootstock_tokens_total{{kind="{kind}",service_tier="flex"}} {count}.0'.encode() in text
