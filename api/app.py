"""Builds the HTTP application from its services: routes, error handlers and middleware.

Process mains and tests call `create_app(services)`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from adapters.files.uploads import MAX_PART_BYTES
from api import health
from api.authentication import identify
from api.batches import bodies as batch_bodies
from api.batches import routes as batch_routes
from api.cors import Preflights
from api.edge import AsgiApp, BodyLimit, BodyLimits, Edge
from api.errors import (
    ERROR_RESPONSES,
    ApiError,
    InvalidValue,
    MethodNotAllowed,
    RouteNotFound,
    body_of,
    headers_of,
    response_for,
)
from api.fast_path import FastPath
from api.idempotency import Idempotency
from api.methods import Methods
from api.metrics.engine import EngineCollector
from api.metrics.quotas import QuotaCollector
from api.metrics.refusals import RefusalCollector
from api.metrics.request_metadata import MetadataCollector
from api.metrics.routing import RoutingCollector
from api.openai import models as model_routes
from api.openai import routes as openai_routes
from api.openai import tokenize as token_routes
from api.openai.schemas import ChatCompletionRequest, CompletionRequest
from api.openapi.document import build_document
from api.organization import invites as invite_routes
from api.organization import request_bodies as organization_bodies
from api.organization import routes as organization_routes
from api.organization import workload_identity_bodies
from api.pagination import known_query
from api.refusals import RefusedCalls, refused_calls_of
from api.responses import conversation_routes
from api.responses import routes as response_routes
from api.responses.objects import ITEMS
from api.responses.schemas import BODIES as RESPONSE_BODIES
from api.route_table import RouteTable
from api.scim import app as scim
from api.services import RequestLimits, Services
from api.site.routes import SiteRoutes, not_found_page, wants_page
from api.v1 import adapter_bodies, job_bodies, notification_bodies
from api.v1 import adapters as adapter_routes
from api.v1 import billing as billing_routes
from api.v1 import costs as cost_routes
from api.v1 import exports as export_routes
from api.v1 import files as file_routes
from api.v1 import generations as generation_routes
from api.v1 import invoices as invoice_routes
from api.v1 import jobs as job_routes
from api.v1 import shares as share_routes
from api.v1 import signatures as signature_routes
from api.v1 import sla as sla_routes
from api.v1 import spend_alerts as spend_alert_routes
from api.v1 import token_exchange as token_exchange_routes
from api.v1 import uploads as upload_routes
from api.v1 import usage as usage_routes
from api.v1 import webhook_endpoints as webhook_endpoint_routes
from api.webhooks import stripe as stripe_webhooks
from db.errors import UnstorableText

TITLE = "Rootstock"
VERSION = "0.3.0"
_PARSING = {
    "int_parsing": "must be an integer",
    "int_parsing_size": "is larger than any integer taken here",
    "bool_parsing": "must be true or false",
    "missing": "is required",
}
"""Messages for the framework's validation errors, in the wording of the API's other errors."""
BODIES = (ChatCompletionRequest, CompletionRequest)
OPEN = (
    health.router,
    stripe_webhooks.router,
    invite_routes.open_router,
    token_exchange_routes.open_router,
    signature_routes.open_router,
)
PROTECTED = (
    openai_routes.router,
    response_routes.router,
    conversation_routes.router,
    batch_routes.router,
    token_routes.router,
    model_routes.router,
    file_routes.router,
    upload_routes.router,
    adapter_routes.router,
    share_routes.owned,
    share_routes.received,
    signature_routes.owned,
    signature_routes.shared,
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
    """Returns the ASGI application over `services`, which the caller has started and will close.

    Args:
        console: an ASGI application for every path under /console, or None.
    """
    app = FastAPI(
        title=TITLE,
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        # Spans are our own: the framework's would have input values and messages in them.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = services
    app.state.refused_calls = refused_calls_of(services)
    app.add_middleware(Preflights)
    app.router.routes.append(_route_table())
    app.mount(scim.PATH, scim.ScimApp(services))
    if console is not None:
        app.mount("/console", console)
        app.add_api_route("/console", _to_console, include_in_schema=False)
    SiteRoutes(app, services).install()
    app.state.methods = Methods(app, [*_all_routes().routes, *app.routes])
    app.openapi = _document  # type: ignore[method-assign]
    for error_class in ERROR_RESPONSES:
        app.add_exception_handler(error_class, _show)
    app.add_exception_handler(UnstorableText, _show_unstorable)
    app.add_exception_handler(HTTPException, _show_http)
    app.add_exception_handler(RequestValidationError, _show_validation)
    app.add_exception_handler(Exception, _show)
    _register_collectors(services)
    direct = FastPath(
        app,
        {
            "/v1/chat/completions": openai_routes.create_chat_completion,
            "/v1/completions": openai_routes.create_completion,
            "/v1/responses": response_routes.create,
        },
        _show,
    )
    guarded = Idempotency(direct, app, services.idempotency, _show)
    refused_calls: RefusedCalls | None = app.state.refused_calls
    on_error = None if refused_calls is None else refused_calls.note
    limits = _body_limits(services.limits)
    edge = Edge(guarded, services.metrics, limits, services.deferred_work, on_error, services.tracing)
    edge.openapi = app.openapi  # type: ignore[attr-defined]
    return edge


@functools.cache
def _all_routes() -> APIRouter:
    """Returns the routes, which all applications of this process share: they do not depend on services, and
    FastAPI takes a tenth of a second to analyze their parameters.
    """
    all_routes = APIRouter()
    for router in OPEN:
        all_routes.include_router(router)
    for router in PROTECTED:
        # Before anything that a route reads: a request without a valid key is refused for that alone.
        all_routes.include_router(router, dependencies=[Depends(identify), Depends(known_query)])
    return all_routes


@functools.cache
def _route_table() -> RouteTable:
    return RouteTable(_all_routes().routes)


@functools.cache
def _document() -> dict[str, Any]:
    """Returns the OpenAPI document of all routes, which takes a second to build."""
    known = (
        ChatCompletionRequest,
        CompletionRequest,
        *RESPONSE_BODIES,
        *ITEMS,
        *batch_bodies.BODIES,
        *token_routes.BODIES,
        *upload_routes.BODIES,
        *adapter_bodies.BODIES,
        *share_routes.BODIES,
        *job_bodies.BODIES,
        *organization_bodies.BODIES,
        *workload_identity_bodies.BODIES,
        *token_exchange_routes.BODIES,
        *notification_bodies.BODIES,
        *billing_routes.BODIES,
    )
    contracts = {
        operation_id: contract
        for router in (*OPEN, *PROTECTED)
        for operation_id, contract in router.contracts.items()
    }
    return build_document(TITLE, VERSION, _all_routes().routes, known, contracts)


def _register_collectors(services: Services) -> None:
    registry = services.metrics.registry
    registry.register(EngineCollector(services.pools.clients))
    registry.register(RoutingCollector([pool.engine for pool in services.pools]))
    registry.register(QuotaCollector(services.quotas))
    if services.refusals is not None:
        registry.register(RefusalCollector(services.refusals))
    if services.request_metadata is not None:
        registry.register(MetadataCollector(services.request_metadata))
    for collector in services.polled:
        registry.register(collector)


def _body_limits(limits: RequestLimits) -> BodyLimits:
    """Returns the body limits. Only routes that stream bodies or store them on disk accept large ones."""
    timeout, rate = limits.body_timeout, limits.min_file_rate
    part = MAX_PART_BYTES + file_routes.FORM_OVERHEAD
    return BodyLimits(
        BodyLimit(limits.max_body_bytes, timeout),
        (
            ("POST", re.compile(r"/v1/files"), BodyLimit(limits.max_file_bytes, timeout, rate)),
            ("POST", re.compile(r"/console/batches/new"), BodyLimit(limits.max_file_bytes, timeout, rate)),
            ("POST", re.compile(r"/v1/uploads/[^/]+/parts"), BodyLimit(part, timeout, rate)),
            ("POST", re.compile(r"/console/adapters/uploads/[^/]+/parts"), BodyLimit(part, timeout, rate)),
            ("POST", re.compile(r"/console/adapters/([^/]+/versions/)?new"), BodyLimit(part, timeout, rate)),
        ),
    )


async def _to_console() -> Response:
    """Redirects to `/console/`, below which the console's pages are."""
    return Response(status_code=308, headers={"location": "/console/"})


async def _show(request: Request, error: Exception) -> Response:
    """Returns the error envelope for any error."""
    shown = response_for(error)
    services: Services = request.app.state.services
    services.metrics.failed(shown.code)
    refused_calls: RefusedCalls | None = request.app.state.refused_calls
    if refused_calls is not None:
        refused_calls.note(request.scope, error)
    return Response(body_of(error), status_code=shown.status, headers=headers_of(error))


async def _show_unstorable(request: Request, error: Exception) -> Response:
    """Returns the error for a NUL character in the path, the query or the body."""
    given = {**request.path_params, **request.query_params}
    name = next((name for name, value in given.items() if "\x00" in str(value)), None)
    return await _show(request, InvalidValue(f"Invalid value: {error}.", name))


async def _show_http(request: Request, error: Exception) -> Response:
    """Returns the error for an unknown route or a method that it does not allow."""
    assert isinstance(error, HTTPException)
    shown: ApiError
    if error.status_code == 405:
        shown = MethodNotAllowed(f"{request.method} is not allowed on {request.url.path[:200]}.")
    elif error.status_code == 404:
        shown = RouteNotFound(f"There is no {request.method} {request.url.path[:200]}.")
    else:
        shown = InvalidValue("The request cannot be read.")
    response = await _show(request, shown)
    if error.status_code == 404 and wants_page(request):
        response = not_found_page()
        response.headers["vary"] = "accept"
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(request.app.state.methods.of(request.url.path))
    return response


async def _show_validation(request: Request, error: Exception) -> Response:
    """Returns the error for an invalid query or path parameter."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(step) for step in first["loc"][1:]) or None
    what = _PARSING.get(first["type"], first["msg"])
    return await _show(request, InvalidValue(f"Invalid value for '{name}': {what}.", name))
