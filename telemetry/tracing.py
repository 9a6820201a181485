"""Records spans from timestamps and exports them by OTLP with OpenTelemetry's SDK.

The only module that imports the SDK; `telemetry.trace_setup` imports it where tracing is on. Callers keep
timestamps, and record spans from them once a request has ended. A span is a plain object until its batch is
exported: the SDK's own are made on the exporter's thread, many at a time. Made one by one between requests,
the same code took ten times as long, since it was in no cache any more.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from random import getrandbits
from typing import ClassVar, Literal, cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from telemetry.sampling import EVERY_TRACE, HeadSampling, Origin
from telemetry.trace_context import TraceContext

Kind = Literal["server", "client", "consumer", "internal"]
AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]

SHUTDOWN_SECONDS = 5.0
"""For the last spans to reach the collector when a process ends."""
_KINDS = {
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "consumer": SpanKind.CONSUMER,
    "internal": SpanKind.INTERNAL,
}
_SCOPE = InstrumentationScope("rootstock")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def exporting_tracing(defaults: Mapping[str, str], sampling: HeadSampling) -> Tracing:
    """Returns tracing that exports as OTEL_* says. `defaults`: resource attributes that it does not set."""
    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({name: value for name, value in defaults.items() if name not in given})
    return Tracing(BatchSpanProcessor(BuildingExporter(OTLPSpanExporter(), resource)), sampling)


class Span:
    """A recorded span. Times are Unix nanoseconds. It is exported once it has ended, and not changed then."""

    __slots__ = (
        "_processor",
        "attributes",
        "end_ns",
        "error_type",
        "events",
        "has_remote_parent",
        "kind",
        "name",
        "parent_id",
        "span_id",
        "start_ns",
        "trace_id",
        "tracestate",
    )
    context: ClassVar = SpanContext(1, 1, is_remote=False, trace_flags=_SAMPLED)
    """What the SDK's processors ask whether the span is sampled."""

    def __init__(
        self, processor: SpanProcessor, name: str, kind: Kind, origin: Origin, start_ns: int, tracestate: str
    ) -> None:
        self._processor = processor
        self.name = name
        self.kind: Kind = kind
        self.trace_id, self.parent_id = origin
        self.span_id = getrandbits(64) or 1
        self.has_remote_parent = False
        self.start_ns = self.end_ns = start_ns
        self.tracestate = tracestate
        self.attributes: dict[str, AttributeValue] = {}
        self.events: list[tuple[str, int]] = []
        self.error_type: str | None = None

    def set_attributes(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def add_event(self, name: str, timestamp: int) -> None:
        self.events.append((name, timestamp))

    def end(self, end_ns: int) -> None:
        """Ends the span, and hands it to the exporter."""
        self.end_ns = end_ns
        self._processor.on_end(cast(ReadableSpan, self))


class Tracing:
    """A process's spans. Times are Unix nanoseconds.

    Args:
        processor: passes spans that have ended to a `BuildingExporter`.
        sampling: which traces are recorded.
    """

    def __init__(self, processor: SpanProcessor, sampling: HeadSampling = EVERY_TRACE) -> None:
        self._processor = processor
        self.origin = sampling.origin
        """Decides whether a request is recorded, before anything is made for it (`HeadSampling.origin`)."""

    def begin(
        self, name: str, kind: Kind, start_ns: int, traceparent: str = "", tracestate: str = ""
    ) -> Span | None:
        """Begins a span in the trace that the headers of W3C Trace Context name, or in a new one where there
        are none or they are invalid. Returns None when the trace is not recorded.
        """
        origin = self.origin(traceparent)
        return None if origin is None else self.begin_at(origin, name, kind, start_ns, tracestate)

    def begin_at(self, origin: Origin, name: str, kind: Kind, start_ns: int, tracestate: str = "") -> Span:
        """Begins a span of a trace that is recorded."""
        span = Span(self._processor, name, kind, origin, start_ns, tracestate if origin.parent_id else "")
        span.has_remote_parent = bool(origin.parent_id)
        return span

    def begin_below(self, parent: Span, name: str, kind: Kind, start_ns: int) -> Span:
        """Begins a child of a span of this process."""
        origin = Origin(parent.trace_id, parent.span_id)
        return Span(self._processor, name, kind, origin, start_ns, parent.tracestate)

    def record(
        self, parent: Span, name: str, start_ns: int, end_ns: int, attributes: Attributes | None = None
    ) -> Span:
        """Records a child that has ended. Returns it, as the parent of others."""
        span = self.begin_below(parent, name, "internal", start_ns)
        if attributes is not None:
            span.set_attributes(attributes)
        span.end(end_ns)
        return span

    @staticmethod
    def context_of(span: Span) -> TraceContext:
        """Returns the ids of a span."""
        return TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}")

    @staticmethod
    def mark_failed(span: Span, error_type: str) -> None:
        """Marks a span as failed. `error_type`: a class or code of errors; never their message, which may
        quote what a client sent.
        """
        span.error_type = error_type

    def close(self) -> None:
        """Exports what is left, for at most `SHUTDOWN_SECONDS`."""
        # The exporter retries for its own timeout, which an ending process does not wait for.
        closing = threading.Thread(target=self._processor.shutdown, name="tracing-shutdown", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)


class BuildingExporter(SpanExporter):
    """Makes the SDK's spans of ours, and exports them by `exporter`."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._resource = resource

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([self._build(span) for span in cast("Sequence[Span]", spans)])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _build(self, span: Span) -> ReadableSpan:
        state = TraceState.from_header([span.tracestate]) if span.tracestate else None
        parent = None
        if span.parent_id:
            parent = SpanContext(span.trace_id, span.parent_id, span.has_remote_parent, _SAMPLED, state)
        status = Status()
        attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in span.attributes.items()
        }
        if span.error_type is not None:
            status = Status(StatusCode.ERROR)
            attributes["error.type"] = span.error_type
        return ReadableSpan(
            span.name,
            context=SpanContext(
                span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=state
            ),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=[Event(name, timestamp=at) for name, at in span.events],
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=_SCOPE,
        )
