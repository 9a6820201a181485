"""Defines the report on an engine that the operator's page shows."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from engine.protocol import EngineInfo, EngineView

EngineState = Literal["starting", "serving", "draining", "gone"]


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that is connected to an engine, or tries to be, can tell of it. Times are Unix seconds.

    It goes between API processes of two releases: fields are added with defaults.
    """

    key: str
    """The engine's id; until it is known, the endpoint."""
    state: EngineState
    reported_at: float
    since: float
    """When the state began, as far as anybody looked."""
    info: EngineInfo | None = None
    view: EngineView | None = None
    """The last one there is, however old."""


class Engines(Protocol):
    async def look(self) -> list[EngineReport]:
        """Returns a report on every engine that was seen lately, by key. Processes keep reporting for a few
        seconds after a call.
        """
        ...
