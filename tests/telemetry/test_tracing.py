"""Spans reach a collector as the standard variables say; without an endpoint nothing of the SDK is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from benchmarks.otlp_receiver import OtlpReceiver, receiving_spans
from telemetry.trace_context import TraceContext
from telemetry.trace_setup import is_enabled, open_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOADED = ("telemetry.tracing", "opentelemetry.sdk.trace", "opentelemetry.exporter")
"""What only a process that records spans imports. Redis' client imports the SDK's metrics where it can."""
NOT_SAMPLED = PARENT[:-1] + "0"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    with receiving_spans() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


def test_without_an_endpoint_nothing_is_imported() -> None:
    program = (
        f"LOADED = {LOADED}\n"
        "import sys; from telemetry.trace_setup import open_tracing; import api.edge, engine.main, db.tasks\n"
        "assert open_tracing('x', 'y') is None\n"
        "print([name for name in sys.modules if name.startswith(LOADED)])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_it_is_on_where_an_endpoint_is_set(environment: dict[str, str], on: bool) -> None:
    assert is_enabled(environment) is on


@pytest.mark.parametrize(
    "setting", [{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_TRACES_EXPORTER": "console"}]
)
def test_what_is_not_supported_is_refused_by_its_name(setting: dict[str, str]) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", **setting}
    (value,) = setting.values()
    with pytest.raises(ValueError, match=f"{value}.* is not supported.*set"):
        open_tracing("rootstock-api", "api", environment)


def test_spans_arrive_with_their_parents_and_times(receiver: OtlpReceiver) -> None:
    tracing = open_tracing("rootstock-api", "api-0")
    assert tracing is not None
    began = time.time_ns()
    span = tracing.begin("request", "server", began, PARENT, "vendor=1")
    assert span is not None
    tracing.record(span, "part", began + 5, began + 10, {"a": 1})
    tracing.mark_failed(span, "internal_error")
    span.end(began + 20)
    tracing.close()

    (request,), (part,) = receiver.named("request"), receiver.named("part")
    assert (request.trace_id, request.parent_id) == (PARENT[3:35], PARENT[36:52])
    assert (part.trace_id, part.parent_id) == (PARENT[3:35], request.span_id)
    assert (part.start_ns, part.end_ns, part.attributes) == (began + 5, began + 10, {"a": 1})
    assert request.failed
    assert request.attributes == {"error.type": "internal_error"}
    assert request.resource["service.name"] == "rootstock-api"
    assert request.resource["service.instance.id"] == "api-0"
    context = tracing.context_of(span)
    assert context == TraceContext(request.trace_id, request.span_id)


def test_the_environment_names_service_and_resource(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=a")
    tracing = open_tracing("rootstock-api", "api-0")
    assert tracing is not None
    span = tracing.begin("request", "server", time.time_ns())
    assert span is not None
    span.end(time.time_ns())
    tracing.close()
    resource = receiver.spans[0].resource
    assert resource["service.name"] == "mine"
    assert resource["service.instance.id"] == "a"
    assert resource["deployment.environment.name"] == "test"


@pytest.mark.parametrize(
    ("sampler", "argument", "parent", "recorded"),
    [
        ("parentbased_traceidratio", "0", "", False),
        ("parentbased_traceidratio", "0", PARENT, True),
        ("parentbased_traceidratio", "1", NOT_SAMPLED, False),
        ("parentbased_traceidratio", "1", "00-garbage", True),
        ("always_off", "", PARENT, False),
        ("traceidratio", "0", PARENT, False),
    ],
)
def test_the_sampler_is_that_of_the_environment(
    receiver: OtlpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    argument: str,
    parent: str,
    recorded: bool,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    tracing = open_tracing("rootstock-api", "api-0")
    assert tracing is not None
    span = tracing.begin("request", "server", time.time_ns(), parent)
    assert (span is not None) is recorded
    if span is not None:
        span.end(time.time_ns())
    tracing.close()
    assert len(receiver.spans) == recorded
