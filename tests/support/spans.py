"""Tracing whose spans stay in memory."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from telemetry.sampling import EVERY_TRACE, HeadSampling
from telemetry.tracing import BuildingExporter, Tracing


def tracing_to(exporter: InMemorySpanExporter, sampling: HeadSampling = EVERY_TRACE) -> Tracing:
    return Tracing(SimpleSpanProcessor(BuildingExporter(exporter, Resource({}))), sampling)
