"""Records a span for each task that a worker runs, in the trace of the request that sent it, if any."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from celery import Task, signals

from db.tasks import TRACEPARENT
from telemetry.trace_context import in_trace

if TYPE_CHECKING:
    from telemetry.tracing import Span, Tracing


class TaskSpans:
    """The spans of one process, which runs one task at a time."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._running: tuple[str, Span, AbstractContextManager[None]] | None = None

    def connect(self) -> None:
        """Listens to the tasks of this process from now on."""
        signals.task_prerun.connect(self.began, weak=False)
        signals.task_failure.connect(self.failed, weak=False)
        signals.task_postrun.connect(self.ended, weak=False)

    def began(self, task_id: str, task: Task, **_: Any) -> None:
        delivery = task.request.delivery_info or {}
        traceparent = task.request.get(TRACEPARENT) or ""
        span = self._tracing.begin(f"run {task.name}", "consumer", time.time_ns(), traceparent)
        if span is None:
            return
        span.set_attributes(
            {
                "messaging.system": "celery",
                "messaging.operation.type": "process",
                "messaging.destination.name": delivery.get("routing_key") or "",
                "messaging.message.id": task_id,
                "rootstock.task": task.name,
            }
        )
        entered = in_trace(self._tracing.context_of(span))
        entered.__enter__()
        self._running = task_id, span, entered

    def failed(self, task_id: str, exception: BaseException, **_: Any) -> None:
        if self._running is not None and self._running[0] == task_id:
            self._tracing.mark_failed(self._running[1], type(exception).__name__)

    def ended(self, task_id: str, **_: Any) -> None:
        if self._running is None or self._running[0] != task_id:
            return
        span, entered = self._running[1:]
        self._running = None
        entered.__exit__(None, None, None)
        span.end(time.time_ns())
