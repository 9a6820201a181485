"""Records OpenTelemetry spans from timestamps and exports them by OTLP.

The only module that imports the SDK; `telemetry.trace_setup` imports it where tracing is on. Callers keep
timestamps, and record spans from them once a request has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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
_NO_CONTEXT = Context()
_propagator = TraceContextTextMapPropagator()


def exporting_tracing(defaults: Mapping[str, str]) -> Tracing:
    """Returns tracing that exports as OTEL_* says. `defaults`: resource attributes that it does not set."""
    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({name: value for name, value in defaults.items() if name not in given})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class _ChosenIds(RandomIdGenerator):
    """Gives a new trace the id that `chosen` names, once; else a random one."""

    chosen: int | None = None

    def generate_trace_id(self) -> int:
        chosen, self.chosen = self.chosen, None
        return super().generate_trace_id() if chosen is None else chosen


class Tracing:
    """A process's spans. Begin new traces on one thread only. Times are Unix nanoseconds."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._sampler = provider.sampler
        self._ids = provider.id_generator = _ChosenIds()
        self._tracer = provider.get_tracer("rootstock")

    def begin(
        self, name: str, kind: Kind, start_ns: int, traceparent: str = "", tracestate: str = ""
    ) -> Span | None:
        """Begins a span in the trace that the headers of W3C Trace Context name, or in a new one where there
        are none or they are invalid. Returns None when the sampler leaves it out.
        """
        context, trace_id = _NO_CONTEXT, 0
        if traceparent:
            carrier = {"traceparent": traceparent, "tracestate": tracestate}
            context = _propagator.extract(carrier, context)
            trace_id = get_current_span(context).get_span_context().trace_id
        is_new = not trace_id
        if is_new:
            trace_id = self._ids.generate_trace_id()
        # Asked first, since most requests are not sampled: the SDK makes a span of these, too, which costs
        # twice as much.
        if not self._sampler.should_sample(context, trace_id, name, _KINDS[kind]).decision.is_recording():
            return None
        if is_new:
            self._ids.chosen = trace_id
        return self._tracer.start_span(name, context, _KINDS[kind], start_time=start_ns)

    def begin_below(self, parent: Span, name: str, kind: Kind, start_ns: int) -> Span:
        """Begins a child of a span of this process."""
        context = set_span_in_context(parent, _NO_CONTEXT)
        return self._tracer.start_span(name, context, _KINDS[kind], start_time=start_ns)

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
        context = span.get_span_context()
        return TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    @staticmethod
    def mark_failed(span: Span, error_type: str) -> None:
        """Marks a span as failed. `error_type`: a class or code of errors; never their message, which may
        quote what a client sent.
        """
        span.set_attribute("error.type", error_type)
        span.set_status(Status(StatusCode.ERROR))

    def close(self) -> None:
        """Exports what is left, for at most `SHUTDOWN_SECONDS`."""
        # The exporter retries for its own timeout, which an ending process does not wait for.
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-shutdown", daemon=True)
        closing.start()
        closing.join(SHUTDOWN_SECONDS)
