"""Turns OpenTelemetry tracing on in a process whose environment sets an OTLP endpoint (OTEL_*). Elsewhere it
is off, and nothing of its SDK is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from telemetry.release import installed_release
from telemetry.sampling import sampling_of

if TYPE_CHECKING:
    from telemetry.tracing import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
"""The only one: gRPC would add a library of 10 MB to every installation."""


def open_tracing(service: str, instance: str, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Returns the process's tracing; None where no endpoint is set, or where OTEL_SDK_DISABLED or
    OTEL_TRACES_EXPORTER=none turns it off.

    Args:
        service: `service.name` unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name another.
        instance: `service.instance.id`, in the same way.

    Raises ValueError as `check_tracing` does.
    """
    if not is_enabled(environment):
        return None
    check_tracing(environment)
    from telemetry.tracing import exporting_tracing

    names = {"service.name": service, "service.instance.id": instance}
    return exporting_tracing(names | {"service.version": installed_release()}, sampling_of(environment))


def check_tracing(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ValueError when tracing is on with an exporter or protocol that is not supported."""
    if not is_enabled(environment):
        return
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter != "otlp":
        raise ValueError(f"OTEL_TRACES_EXPORTER={exporter} is not supported; set it to otlp or none")
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL).strip()
    if protocol != _PROTOCOL:
        raise ValueError(
            f"the OTLP protocol {protocol} is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL={_PROTOCOL} and "
            "the endpoint of your collector's HTTP receiver (port 4318 by default)"
        )


def is_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a process with this environment records spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return False
    return any(environment.get(name, "").strip() for name in ENDPOINTS)
