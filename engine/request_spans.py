"""Records the spans of traced requests once they have ended: `queue`, `load adapter`, `prefill`, `decode` and
`journal` below `engine request`.

They are made of the timestamps of usage events, on the journal's thread: the step loop pays for two look-ups
of a request. `engine request` ends when the usage is in the journal: then the client may be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.core import EngineCore
from engine.observation import NoObserver
from engine.protocol import Submit, UsageEvent

if TYPE_CHECKING:
    from telemetry.tracing import AttributeValue, Tracing


@dataclass(slots=True)
class _Traced:
    traceparent: str
    received_at: float
    """Unix seconds, as are all times here."""
    load: tuple[float, float] | None = None
    """When its adapter's load began and ended."""


class RequestSpans(NoObserver):
    """The requests with a `traceparent` that have not ended."""

    def __init__(self, tracing: Tracing, clock: Callable[[], float] = time.time) -> None:
        self._tracing = tracing
        self._clock = clock
        self._open: dict[str, _Traced] = {}

    def received(self, request: Submit) -> None:
        if request.traceparent:
            self._open[request.request_id] = _Traced(request.traceparent, self._clock())

    def started(self, event: UsageEvent, core: EngineCore) -> None:
        """Notes when the request's adapter was loaded: now it is in a slot."""
        traced = self._open.get(event.request_id)
        if traced is None or event.adapter_digest is None:
            return
        slot = core.scheduler.slot_allocator.slots.find(event.adapter_digest)
        if slot is not None:
            traced.load = slot.load_began_at, slot.loaded_at

    def rejected(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def ended(self, event: UsageEvent) -> None:
        traced = self._open.pop(event.request_id, None)
        if traced is None:
            return
        received, written = _nanoseconds(traced.received_at), _nanoseconds(self._clock())
        span = self._tracing.begin("engine request", "server", received, traced.traceparent)
        if span is None:
            return
        # Of a clock that was set back meanwhile, no span may end before it begins.
        finished = max(received, _nanoseconds(event.finished_at or event.recorded_at))
        scheduled = first = finished
        if event.scheduled_at is not None:
            scheduled = min(max(received, _nanoseconds(event.scheduled_at)), finished)
        if event.first_token_at is not None:
            first = min(max(scheduled, _nanoseconds(event.first_token_at)), finished)
        queue = self._tracing.record(span, "queue", received, scheduled)
        if traced.load is not None:
            began, loaded = map(_nanoseconds, traced.load)
            if loaded > received and began < scheduled:
                digest: dict[str, AttributeValue] = {"rootstock.adapter.digest": event.adapter_digest or ""}
                begin, end = max(began, received), min(loaded, scheduled)
                self._tracing.record(queue, "load adapter", begin, end, digest)
        if event.scheduled_at is not None:
            self._tracing.record(span, "prefill", scheduled, first)
        if event.first_token_at is not None:
            span.add_event("first token", timestamp=first)
            self._tracing.record(span, "decode", first, finished)
        self._tracing.record(span, "journal", finished, max(finished, written))
        span.set_attributes(_attributes(event))
        span.end(max(finished, written))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _attributes(event: UsageEvent) -> dict[str, AttributeValue]:
    """Returns what was billed, under names of our own: the span of the answer has the standard ones, and
    tokens must not be counted twice.
    """
    usage = event.usage
    attributes: dict[str, AttributeValue] = {
        "rootstock.request.id": event.request_id,
        "rootstock.engine.id": event.engine_id,
        "rootstock.tenant.id": event.tenant,
        "rootstock.service_tier": event.priority.value,
        "rootstock.finish_reason": event.finish_reason or "",
        "rootstock.billed.input_tokens": usage.prompt_tokens,
        "rootstock.billed.cached_tokens": usage.cached_tokens,
        "rootstock.billed.output_tokens": usage.completion_tokens,
        "rootstock.billed.reasoning_tokens": usage.reasoning_tokens,
        "rootstock.preemptions": event.preemptions,
    }
    if event.adapter_digest is not None:
        attributes["rootstock.adapter.digest"] = event.adapter_digest
    return attributes
