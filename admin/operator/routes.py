"""All routes of the operator's pages, as one list. Knows no page."""

from __future__ import annotations

from starlette.routing import Route

from admin.frame import Frame
from admin.operator.engine_routes import EngineRoutes
from admin.operator.home_routes import HomeRoutes
from admin.operator.impersonation_routes import ImpersonationRoutes
from admin.services import ConsoleServices


def operator_routes(frame: Frame, services: ConsoleServices) -> list[Route]:
    return [
        *HomeRoutes(frame).routes(),
        *EngineRoutes(frame, services).routes(),
        *ImpersonationRoutes(frame, services).routes(),
    ]
