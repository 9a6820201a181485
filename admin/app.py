"""Assembles the web console as a mountable ASGI app."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from admin.account.routes import AccountRoutes
from admin.account.second_factor_routes import SecondFactorRoutes
from admin.adapters.import_routes import ImportRoutes
from admin.adapters.routes import AdapterRoutes
from admin.adapters.share_routes import ShareRoutes
from admin.adapters.upload_routes import UploadRoutes
from admin.audit.routes import AuditRoutes
from admin.batches.creation_routes import BatchCreationRoutes
from admin.batches.routes import BatchRoutes
from admin.billing.routes import BillingRoutes
from admin.invoices.routes import InvoiceRoutes
from admin.keys.routes import KeyRoutes
from admin.limits.alert_routes import AlertRoutes
from admin.limits.routes import LimitRoutes
from admin.members.routes import MemberRoutes
from admin.operator.routes import operator_routes
from admin.organization.routes import OrganizationRoutes
from admin.overview.routes import OverviewRoutes
from admin.playground.routes import PlaygroundRoutes
from admin.projects.routes import ProjectRoutes
from admin.projects.service_account_routes import ServiceAccountRoutes
from admin.provisioning.routes import ProvisioningRoutes
from admin.retention.routes import RetentionRoutes
from admin.search.routes import SearchRoutes
from admin.service_levels.routes import ServiceLevelRoutes
from admin.services import AdapterServices, BillingServices, ConsoleServices, ErrorMapping
from admin.sign_in.join_routes import JoinRoutes
from admin.sign_in.oidc.routes import OidcRoutes
from admin.sign_in.password_reset_routes import RecoveryRoutes
from admin.sign_in.routes import SignInRoutes
from admin.sign_in.saml.routes import SamlRoutes
from admin.signing.routes import SigningRoutes
from admin.single_sign_on.routes import SingleSignOnRoutes
from admin.usage.routes import UsageRoutes
from admin.web import security
from admin.web.assets import console_assets
from admin.web.console import Console
from admin.webhooks.routes import WebhookRoutes
from admin.workload_identity.routes import WorkloadIdentityRoutes

__all__ = ["AdapterServices", "BillingServices", "ConsoleServices", "ErrorMapping", "create_console"]


def create_console(services: ConsoleServices) -> ASGIApp:
    """The console, to be mounted under a prefix such as `/console`."""
    console = Console(services)

    app = Starlette(
        routes=[
            *OverviewRoutes(console, services).routes(),
            *SearchRoutes(console, services).routes(),
            *SignInRoutes(console, services).routes(),
            *ImportRoutes(console, services).routes(),
            *UploadRoutes(console, services).routes(),
            *ShareRoutes(console, services).routes(),
            *AdapterRoutes(console, services).routes(),
            *KeyRoutes(console, services).routes(),
            *MemberRoutes(console, services).routes(),
            *ProjectRoutes(console, services).routes(),
            *ServiceAccountRoutes(console, services).routes(),
            *BatchCreationRoutes(console, services).routes(),
            *BatchRoutes(console, services).routes(),
            *PlaygroundRoutes(console, services).routes(),
            *UsageRoutes(console, services).routes(),
            *BillingRoutes(console, services).routes(),
            *InvoiceRoutes(console, services).routes(),
            *LimitRoutes(console, services).routes(),
            *AlertRoutes(console, services).routes(),
            *WebhookRoutes(console, services).routes(),
            *OrganizationRoutes(console, services).routes(),
            *ProvisioningRoutes(console, services).routes(),
            *SingleSignOnRoutes(console, services).routes(),
            *WorkloadIdentityRoutes(console, services).routes(),
            *SigningRoutes(console, services).routes(),
            *RetentionRoutes(console, services).routes(),
            *AuditRoutes(console, services).routes(),
            *ServiceLevelRoutes(console, services).routes(),
            *JoinRoutes(console, services).routes(),
            *RecoveryRoutes(console, services).routes(),
            *OidcRoutes(console, services).routes(),
            *SamlRoutes(console, services).routes(),
            *AccountRoutes(console, services).routes(),
            *SecondFactorRoutes(console, services).routes(),
            *operator_routes(console, services),
            console_assets().routes(),
        ],
        exception_handlers={HTTPException: console.error_page, Exception: console.internal_error},
    )
    return security.SecurityHeaders(app)
