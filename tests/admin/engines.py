"""Engines for tests of the operator's page: reports that are played, or those of a true watch."""

from __future__ import annotations

from admin.operator.engines.report import EngineReport, Engines


class PlayedEngines:
    """Tells what it was given."""

    def __init__(self) -> None:
        self.reports: list[EngineReport] = []
        self.true: Engines | None = None
        """Asked instead, once there is one."""

    async def look(self) -> list[EngineReport]:
        return self.reports if self.true is None else await self.true.look()
