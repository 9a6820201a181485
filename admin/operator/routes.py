"""All routes of the operator's pages, as one list. Knows no page."""

from __future__ import annotations

from starlette.routing import Route

from admin.operator.audit.routes import AuditRoutes
from admin.operator.engines.routes import EngineRoutes
from admin.operator.home_routes import HomeRoutes
from admin.operator.incidents.routes import IncidentRoutes
from admin.operator.jobs.routes import JobRoutes
from admin.operator.margin.routes import MarginRoutes
from admin.operator.plans.routes import PlanRoutes
from admin.operator.prices.routes import PriceRoutes
from admin.operator.reconciliation.routes import BookRoutes
from admin.operator.tenants.impersonation_routes import ImpersonationRoutes
from admin.operator.tenants.routes import TenantRoutes
from admin.services import ConsoleServices
from admin.web.console import Frame


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
