"""Records the span of a sampled HTTP request and its phases, under OpenTelemetry's names for HTTP.

Phases follow each other without gaps, so that they add up to the request's duration: `authenticate`,
`prepare`, `reserve`, the answer (`api.openai.answer_trace`), `respond`. No span has a text that a client sent
or received.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request

if TYPE_CHECKING:
    from telemetry.tracing import Attributes, AttributeValue, Span, Tracing


class TraceClock:
    """Converts `time.perf_counter()` to Unix nanoseconds, without steps of the system's clock in between."""

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - _nanoseconds(time.perf_counter())

    def unix_ns(self, at: float) -> int:
        return self._offset_ns + _nanoseconds(at)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


class RequestTrace:
    """A sampled HTTP request. Times are those of `time.perf_counter()`."""

    def __init__(self, tracing: Tracing, span: Span, clock: TraceClock, began: float) -> None:
        self.tracing = tracing
        self.context = tracing.context_of(span)
        self.clock = clock
        self._span = span
        self._phases: list[tuple[str, float, float]] = []
        self._last = began
        """The end of the last phase."""

    def mark(self, phase: str) -> None:
        """Ends a phase, which began when the one before it ended."""
        now = time.perf_counter()
        self._phases.append((phase, self._last, now))
        self._last = now

    def begin_answer(self, name: str) -> tuple[Span, float]:
        """Begins a span in place of the next phase, until `answer_ended`. Returns it, and when it began."""
        began = self.clock.unix_ns(self._last)
        return self.tracing.begin_below(self._span, name, "client", began), self._last

    def answer_ended(self, at: float) -> None:
        self._last = at

    def finish(self, name: str, ended: float, status: int, attributes: Attributes) -> None:
        """Records the request, whose response was sent at `ended`."""
        unix_ns = self.clock.unix_ns
        if self._phases:
            self._phases.append(("respond", self._last, ended))
        for phase, begin, end in self._phases:
            self.tracing.record(self._span, phase, unix_ns(begin), unix_ns(end))
        self._span.name = name
        self._span.set_attributes({"http.response.status_code": status, **attributes})
        if status >= 500:
            self.tracing.mark_failed(self._span, str(status))
        self._span.end(unix_ns(ended))


def begin_request(
    tracing: Tracing, method: str, headers: Mapping[bytes, bytes], began: float
) -> RequestTrace | None:
    """Begins the span of an HTTP request that came at `began`, in the trace that the client's `traceparent`
    names; None when it is not sampled.
    """
    parent = headers.get(b"traceparent")
    origin = tracing.origin() if parent is None else tracing.origin(parent.decode("latin-1"))
    if origin is None:
        return None
    clock = TraceClock()
    state = headers.get(b"tracestate", b"").decode("latin-1")
    return RequestTrace(
        tracing, tracing.begin_at(origin, method, "server", clock.unix_ns(began), state), clock, began
    )


def trace_of(request: Request) -> RequestTrace | None:
    """Returns the request's trace; None when it is not sampled."""
    trace: RequestTrace | None = request.scope["state"].get("trace")
    return trace


def mark_phase(request: Request, phase: str) -> None:
    """Ends a phase of the request, if it is traced."""
    trace = trace_of(request)
    if trace is not None:
        trace.mark(phase)


def http_attributes(method: str, route: str, state: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Returns what a request's span says about it. `state`: what handlers have noted of it."""
    attributes: dict[str, AttributeValue] = {
        "http.request.method": method,
        "http.route": route,
        "rootstock.request.id": state["request_id"],
    }
    log: Mapping[str, str] = state.get("log", {})
    for name, source in (("rootstock.tenant.id", "tenant_id"), ("rootstock.key.id", "key_id")):
        if source in log:
            attributes[name] = log[source]
    return attributes
