"""The HTTP application: routes, error handling and the edge, put together over given services.

Owns nothing but the composition. `create_app(services)` is all that a process main, or a test, calls.
"""

from __future__ import annotations

import re

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from adapters.files.uploads import MAX_PART_BYTES
from api import health
from api.authentication import identify
from api.cors import Preflights
from api.direct import Direct
from api.edge import AsgiApp, BodyLimit, BodyLimits, Edge
from api.errors import (
    FACES,
    ApiError,
    InvalidValue,
    MethodNotAllowed,
    RouteNotFound,
    body_of,
    face_of,
    headers_of,
)
from api.idempotency import Idempotency
from api.methods import Methods
from api.metrics.engine import EngineCollector
from api.metrics.quotas import QuotaCollector
from api.openai import models as model_routes
from api.openai import routes as openai_routes
from api.openai.schemas import ChatCompletionRequest, CompletionRequest
from api.openapi.document import install
from api.organization import bodies as organization_bodies
from api.organization import invites as invite_routes
from api.organization import routes as organization_routes
from api.pages import known_query
from api.services import RequestLimits, Services
from api.site.routes import SiteRoutes
from api.v1 import adapter_bodies, job_bodies, notification_bodies
from api.v1 import adapters as adapter_routes
from api.v1 import billing as billing_routes
from api.v1 import costs as cost_routes
from api.v1 import exports as export_routes
from api.v1 import files as file_routes
from api.v1 import generations as generation_routes
from api.v1 import invoices as invoice_routes
from api.v1 import jobs as job_routes
from api.v1 import sla as sla_routes
from api.v1 import spend_alerts as spend_alert_routes
from api.v1 import uploads as upload_routes
from api.v1 import usage as usage_routes
from api.v1 import webhook_endpoints as webhook_endpoint_routes
from api.webhooks import stripe as stripe_webhooks
from db.errors import UnstorableText

VERSION = "0.2.0"
_PARSING = {
    "int_parsing": "must be an integer",
    "int_parsing_size": "is larger than any integer taken here",
    "bool_parsing": "must be true or false",
    "missing": "is required",
}
"""What the framework finds wrong with a parameter, in the words of the other errors."""
BODIES = (ChatCompletionRequest, CompletionRequest)
OPEN = (health.router, stripe_webhooks.router, invite_routes.open_router)
PROTECTED = (
    openai_routes.router,
    model_routes.router,
    file_routes.router,
    upload_routes.router,
    adapter_routes.router,
    job_routes.router,
    usage_routes.router,
    invoice_routes.router,
    cost_routes.router,
    export_routes.router,
    generation_routes.router,
    sla_routes.router,
    organization_routes.router,
    spend_alert_routes.router,
    billing_routes.router,
    webhook_endpoint_routes.router,
)
"""Routes that need an API key."""
log = structlog.get_logger(__name__)


def create_app(services: Services, console: AsgiApp | None = None) -> AsgiApp:
    """The ASGI application over `services`, which the caller has started and will close.

    Args:
        console: an ASGI application for every path under /console; none when None.
    """
    app = FastAPI(
        title="Rootstock",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    app.state.services = services
    app.add_middleware(Preflights)
    for router in OPEN:
        app.include_router(router)
    for router in PROTECTED:
        # Ahead of everything that a route reads: without a valid key nothing else of a request is judged.
        app.include_router(router, dependencies=[Depends(identify), Depends(known_query)])
    if console is not None:
        app.mount("/console", console)
        app.add_api_route("/console", _to_console, include_in_schema=False)
    SiteRoutes(app, services).install()
    bodies = (*upload_routes.BODIES, *adapter_bodies.BODIES, *job_bodies.BODIES, *organization_bodies.BODIES)
    known = (
        ChatCompletionRequest,
        CompletionRequest,
        *bodies,
        *notification_bodies.BODIES,
        *billing_routes.BODIES,
    )
    app.state.methods = Methods(app)
    contracts = {
        operation_id: contract
        for router in (*OPEN, *PROTECTED)
        for operation_id, contract in router.contracts.items()
    }
    install(app, known, contracts)
    for error_class in FACES:
        app.add_exception_handler(error_class, _show)
    app.add_exception_handler(UnstorableText, _show_unstorable)
    app.add_exception_handler(HTTPException, _show_http)
    app.add_exception_handler(RequestValidationError, _show_validation)
    app.add_exception_handler(Exception, _show)
    services.metrics.registry.register(
        EngineCollector(lambda: services.engine.stats, lambda: services.engine.ready)
    )
    services.metrics.registry.register(QuotaCollector(services.quotas))
    for asked in (services.payments_waiting, services.books, services.restarts):
        if asked is not None:
            services.metrics.registry.register(asked)
    direct = Direct(
        app,
        {
            "/v1/chat/completions": openai_routes.create_chat_completion,
            "/v1/completions": openai_routes.create_completion,
        },
        _show,
    )
    guarded = Idempotency(direct, app, services.idempotency, _show)
    edge = Edge(guarded, services.metrics, _body_limits(services.limits), services.deferred_work)
    edge.openapi = app.openapi  # type: ignore[attr-defined]
    return edge


def _body_limits(limits: RequestLimits) -> BodyLimits:
    """Large bodies are taken by the routes that hand them on as they come, or that put them on disk."""
    timeout, rate = limits.body_timeout, limits.min_file_rate
    part = MAX_PART_BYTES + file_routes.FORM_OVERHEAD
    return BodyLimits(
        BodyLimit(limits.max_body_bytes, timeout),
        (
            ("POST", re.compile(r"/v1/files"), BodyLimit(limits.max_file_bytes, timeout, rate)),
            ("POST", re.compile(r"/v1/uploads/[^/]+/parts"), BodyLimit(part, timeout, rate)),
            ("POST", re.compile(r"/console/adapters/uploads/[^/]+/parts"), BodyLimit(part, timeout, rate)),
            ("POST", re.compile(r"/console/adapters/([^/]+/versions/)?new"), BodyLimit(part, timeout, rate)),
        ),
    )


async def _to_console() -> Response:
    """The console's pages hang below `/console/`."""
    return Response(status_code=308, headers={"location": "/console/"})


async def _show(request: Request, error: Exception) -> Response:
    """The envelope of any error."""
    face = face_of(error)
    request.app.state.services.metrics.failed(face.code)
    return Response(body_of(error), status_code=face.status, headers=headers_of(error))


async def _show_unstorable(request: Request, error: Exception) -> Response:
    """A NUL character in the path, the query or the body."""
    given = {**request.path_params, **request.query_params}
    name = next((name for name, value in given.items() if "\x00" in str(value)), None)
    return await _show(request, InvalidValue(f"Invalid value: {error}.", name))


async def _show_http(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such route, no such verb on it."""
    assert isinstance(error, HTTPException)
    shown: ApiError
    if error.status_code == 405:
        shown = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path[:200]}.")
    elif error.status_code == 404:
        shown = RouteNotFound(f"There is no {request.method} {request.url.path[:200]}.")
    else:
        shown = InvalidValue("The request cannot be read.")
    response = await _show(request, shown)
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(request.app.state.methods.of(request.url.path))
    return response


async def _show_validation(request: Request, error: Exception) -> Response:
    """A query or path parameter of the wrong form."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(step) for step in first["loc"][1:]) or None
    what = _PARSING.get(first["type"], first["msg"])
    return await _show(request, InvalidValue(f"Invalid value for '{name}': {what}.", name))
