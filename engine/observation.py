"""Defines what observes an engine's requests from their arrival to their end: spans and metrics."""

from __future__ import annotations

from typing import Protocol

from engine.core import EngineCore
from engine.gauges import EngineStats
from engine.protocol import Submit, UsageEvent


class RequestObserver(Protocol):
    """Called by the server. `ended` runs on the journal's thread, everything else on the step loop's, which
    it must not delay. No method may raise.
    """

    def received(self, request: Submit) -> None:
        """Notes that a request has come, before it is queued."""
        ...

    def started(self, event: UsageEvent, core: EngineCore) -> None:
        """Notes that a request's first token was drawn."""
        ...

    def rejected(self, request_id: str) -> None:
        """Notes that a request was rejected after it was received."""
        ...

    def ended(self, event: UsageEvent) -> None:
        """Notes that a request has ended, and its last event is in the journal."""
        ...

    def measured(self, stats: EngineStats, core: EngineCore) -> None:
        """Receives the engine's gauges, whenever they are read: about four times a second."""
        ...


class NoObserver:
    """Ignores everything: what an observer leaves out."""

    def received(self, request: Submit) -> None:
        pass

    def started(self, event: UsageEvent, core: EngineCore) -> None:
        pass

    def rejected(self, request_id: str) -> None:
        pass

    def ended(self, event: UsageEvent) -> None:
        pass

    def measured(self, stats: EngineStats, core: EngineCore) -> None:
        pass
