"""Holds the trace that the current task belongs to. Log lines have its ids, and messages to other processes
carry it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class TraceContext(NamedTuple):
    """A span that is being recorded."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""

    @property
    def traceparent(self) -> str:
        """The header of W3C Trace Context that names the span as the parent."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def log_fields(self) -> dict[str, str]:
        return {"trace_id": self.trace_id, "span_id": self.span_id}


_current: ContextVar[TraceContext | None] = ContextVar("rootstock_trace", default=None)


def current_trace() -> TraceContext | None:
    """Returns the span that the current task belongs to; None when it is not traced."""
    return _current.get()


@contextmanager
def in_trace(context: TraceContext) -> Iterator[None]:
    """Runs the block, and the tasks that it starts, as part of a span."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
