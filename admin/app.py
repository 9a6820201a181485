"""The web console as a mountable ASGI app.

Owns which routes there are. Refuses to know SQL, and what the pages show (`admin.pages`).
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from admin.account.routes import AccountRoutes
from admin.account.second_factor_routes import SecondFactorRoutes
from admin.adapters.routes import AdapterRoutes
from admin.adapters.upload_routes import UploadRoutes
from admin.audit.routes import RecordRoutes
from admin.billing.routes import BillingRoutes
from admin.keys.routes import KeyRoutes
from admin.limits.routes import LimitRoutes
from admin.members.routes import MemberRoutes
from admin.operator.routes import operator_routes
from admin.overview.routes import OverviewRoutes
from admin.playground.routes import PlaygroundRoutes
from admin.projects.routes import ProjectRoutes
from admin.projects.service_account_routes import ServiceAccountRoutes
from admin.services import AdapterServices, BillingServices, ConsoleServices, Explanations
from admin.sign_in.join_routes import JoinRoutes
from admin.sign_in.oidc.routes import OidcRoutes
from admin.sign_in.password_reset_routes import RecoveryRoutes
from admin.sign_in.routes import SignInRoutes
from admin.usage.routes import UsageRoutes
from admin.web import security
from admin.web.console import HERE, Frame
from admin.webhooks.routes import WebhookRoutes

__all__ = ["AdapterServices", "BillingServices", "ConsoleServices", "Explanations", "create_console"]


def create_console(services: ConsoleServices) -> ASGIApp:
    """The console, to be mounted under a prefix such as `/console`."""
    frame = Frame(services)

    app = Starlette(
        routes=[
            *OverviewRoutes(frame, services).routes(),
            *SignInRoutes(frame, services).routes(),
            *UploadRoutes(frame, services).routes(),
            *AdapterRoutes(frame, services).routes(),
            *KeyRoutes(frame, services).routes(),
            *MemberRoutes(frame, services).routes(),
            *ProjectRoutes(frame, services).routes(),
            *ServiceAccountRoutes(frame, services).routes(),
            *PlaygroundRoutes(frame, services).routes(),
            *UsageRoutes(frame, services).routes(),
            *BillingRoutes(frame, services).routes(),
            *LimitRoutes(frame, services).routes(),
            *WebhookRoutes(frame, services).routes(),
            *RecordRoutes(frame, services).routes(),
            *JoinRoutes(frame, services).routes(),
            *RecoveryRoutes(frame, services).routes(),
            *OidcRoutes(frame, services).routes(),
            *AccountRoutes(frame, services).routes(),
            *SecondFactorRoutes(frame, services).routes(),
            *operator_routes(frame, services),
            Mount("/static", _Static(frame.version)),
        ],
        exception_handlers={HTTPException: frame.refused},
    )
    return security.SecurityHeaders(app)


class _Static(StaticFiles):
    """What a page names with the hash of all of it may be kept; what a script imports from beside it, by its
    name alone, is asked for again.
    """

    def __init__(self, version: str) -> None:
        super().__init__(directory=HERE / "static")
        self._query = f"v={version}".encode()

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        named = scope["query_string"] == self._query
        response.headers["Cache-Control"] = "public, max-age=86400" if named else "no-cache"
        return response
