"""Lists all routes of the operator's sections."""

from __future__ import annotations

from starlette.routing import Route

from admin.operator.audit.routes import AuditRoutes
from admin.operator.capacity.routes import CapacityRoutes
from admin.operator.engines.routes import EngineRoutes
from admin.operator.home_routes import HomeRoutes
from admin.operator.incidents.routes import IncidentRoutes
from admin.operator.jobs.routes import JobRoutes
from admin.operator.margin.routes import MarginRoutes
from admin.operator.plans.routes import PlanRoutes
from admin.operator.prices.routes import PriceRoutes
from admin.operator.reconciliation.routes import BookRoutes
from admin.operator.tenants.creation_routes import TenantCreationRoutes
from admin.operator.tenants.impersonation_routes import ImpersonationRoutes
from admin.operator.tenants.routes import TenantRoutes
from admin.services import ConsoleServices
from admin.web.console import Console


def operator_routes(console: Console, services: ConsoleServices) -> list[Route]:
    return [
        *HomeRoutes(console).routes(),
        *EngineRoutes(console, services).routes(),
        *CapacityRoutes(console, services).routes(),
        *TenantCreationRoutes(console, services).routes(),
        *TenantRoutes(console, services).routes(),
        *PlanRoutes(console, services).routes(),
        *PriceRoutes(console, services).routes(),
        *IncidentRoutes(console, services).routes(),
        *JobRoutes(console, services).routes(),
        *AuditRoutes(console, services).routes(),
        *MarginRoutes(console, services).routes(),
        *BookRoutes(console, services).routes(),
        *ImpersonationRoutes(console, services).routes(),
    ]
