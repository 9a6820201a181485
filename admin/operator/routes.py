"""All routes of the operator's pages, as one list. Knows no page."""

from __future__ import annotations

from starlette.routing import Route

from admin.frame import Frame
from admin.operator.audit_routes import AuditRoutes
from admin.operator.book_routes import BookRoutes
from admin.operator.engine_routes import EngineRoutes
from admin.operator.home_routes import HomeRoutes
from admin.operator.impersonation_routes import ImpersonationRoutes
from admin.operator.incident_routes import IncidentRoutes
from admin.operator.job_routes import JobRoutes
from admin.operator.margin_routes import MarginRoutes
from admin.operator.plan_routes import PlanRoutes
from admin.operator.price_routes import PriceRoutes
from admin.operator.tenant_routes import TenantRoutes
from admin.services import ConsoleServices


def operator_routes(frame: Frame, services: ConsoleServices) -> list[Route]:
    return [
        *HomeRoutes(frame).routes(),
        *EngineRoutes(frame, services).routes(),
        *TenantRoutes(frame, services).routes(),
        *PlanRoutes(frame, services).routes(),
        *PriceRoutes(frame, services).routes(),
        *IncidentRoutes(frame, services).routes(),
        *JobRoutes(frame, services).routes(),
        *AuditRoutes(frame, services).routes(),
        *MarginRoutes(frame, services).routes(),
        *BookRoutes(frame, services).routes(),
        *ImpersonationRoutes(frame, services).routes(),
    ]
