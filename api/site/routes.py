"""Serves the landing page at `/`, the status page at `/status`, and the documentation with the API reference
below `/docs`.
"""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from admin.web.assets import FOLDER as CONSOLE_FILES
from admin.web.security import CONTENT_SECURITY_POLICY
from admin.web.static_files import REVALIDATED, File, StaticFiles, make_file, respond
from api.health import can_serve, reasons_not_ready
from api.services import Services
from api.site.pages import HERE, render, render_reference
from api.site.status import StatusPages
from db.errors import DatabaseUnavailable
from sla.incidents.service import PublicIncident
from telemetry.tasks import gather_all

SITE: Final = HERE / "built"
"""The documentation as `docs/site/build.py` leaves it."""
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": CONTENT_SECURITY_POLICY,
}
_NAMES: Final = {
    "engine": "Engine",
    "postgres": "Database",
    "schema": "Database schema",
    "redis": "Redis",
    "base": "Base model",
    "disk": "Disk of the API",
    "engine_disk": "Disk of the engine",
}
"""Checks of /readyz as the landing page calls them."""
_ANY_SERVER: Final = "https://rootstock.invalid"
_METHODS: Final = ["GET", "HEAD"]


class SiteRoutes:
    """What people read, over one process's services."""

    def __init__(self, app: FastAPI, services: Services, site: Path = SITE) -> None:
        self._app = app
        self._services = services
        self._site = _files_of(site)
        self._own = _files_of(HERE / "static")
        self._console = _files_of(CONSOLE_FILES)
        self._status = None if services.status is None else StatusPages(services.status)
        self._site_headers = _HEADERS | {"content-security-policy": _policy_for(site)}
        self._reference_html = functools.lru_cache(maxsize=1)(self._render_reference)
        self._reference = functools.lru_cache(maxsize=8)(self._make_reference)

    def install(self) -> None:
        """Adds the routes to the application. None is a part of the OpenAPI document."""
        for path, endpoint in (
            ("/", self.landing),
            ("/docs", self.to_docs),
            ("/docs/reference", self.reference),
            ("/docs/static/{name}", self.static),
            ("/docs/{path:path}", self.docs),
            ("/status", self.status),
            ("/status.json", self.status_json),
            ("/status.atom", self.status_feed),
        ):
            self._app.add_api_route(path, endpoint, methods=_METHODS, include_in_schema=False)

    async def landing(self, request: Request) -> Response:
        reasons, incidents = await gather_all(reasons_not_ready(self._services), self._incidents())
        html = render(
            "landing.html",
            base_url=_base_url(request),
            model=self._model(),
            checks=[(_NAMES.get(name, name), reason) for name, reason in reasons.items()],
            is_ready=can_serve(self._services, reasons),
            incidents=incidents,
        )
        return Response(html, media_type="text/html", headers=_HEADERS | {"cache-control": "no-store"})

    async def to_docs(self, request: Request) -> Response:
        return RedirectResponse("/docs/", 308)

    async def docs(self, request: Request, path: str) -> Response:
        if not self._site:
            return Response(render("not_built.html"), 503, _HEADERS, media_type="text/html")
        name = self._site.name_of(path)
        if name is not None:
            return respond(request, await self._site.get(name), self._site_headers)
        if self._site.is_folder(path):
            return RedirectResponse(f"/docs/{path}/", 308)
        return not_found_page()

    async def status(self, request: Request) -> Response:
        """The status page, from memory."""
        return not_found_page() if self._status is None else respond(request, self._status.html(), _HEADERS)

    async def status_json(self, request: Request) -> Response:
        if self._status is None:
            return not_found_page()
        # For status pages of others: it is public, and needs no key.
        headers = _HEADERS | {"access-control-allow-origin": "*"}
        return respond(request, self._status.json(), headers)

    async def status_feed(self, request: Request) -> Response:
        if self._status is None:
            return not_found_page()
        return respond(request, self._status.atom(_base_url(request)), _HEADERS)

    async def static(self, request: Request, name: str) -> Response:
        """Styles and scripts of the landing page and the reference: their own, and the console's."""
        for files in (self._own, self._console):
            if files.name_of(name) is not None:
                return respond(request, await files.get(name), _HEADERS)
        return not_found_page()

    async def reference(self, request: Request) -> Response:
        file = await asyncio.to_thread(self._reference, _base_url(request), self._model())
        return respond(request, file, _HEADERS)

    def _render_reference(self, model: str) -> str:
        """Rendered once: it takes a second. Whatever host clients name, their pages differ by that alone."""
        return render_reference(self._app.openapi(), _ANY_SERVER, model)

    def _make_reference(self, base_url: str, model: str) -> File:
        html = self._reference_html(model).replace(_ANY_SERVER, str(escape(base_url)))
        return make_file(html.encode(), "text/html", REVALIDATED)

    def _model(self) -> str:
        """A base that an engine serves, for examples that run as they stand."""
        served = (pool.name for pool in self._services.pools if pool.engine.info is not None)
        return next(served, "MODEL")

    async def _incidents(self) -> list[PublicIncident]:
        """Those that tenants see, too. While the database is away, which the checks say, there are none."""
        if self._services.incidents is None:
            return []
        try:
            return await self._services.incidents.public()
        except DatabaseUnavailable:
            return []


def not_found_page() -> Response:
    """Returns the page for an address that has none."""
    return Response(render("not_found.html"), 404, _HEADERS, media_type="text/html")


def wants_page(request: Request) -> bool:
    """Whether an error is shown as a page: to browsers outside of the API. Below `/v1/` errors are always
    JSON, since some HTTP libraries accept `text/html` unasked.
    """
    is_read = request.method in _METHODS and not request.url.path.startswith("/v1/")
    return is_read and "text/html" in request.headers.get("accept", "")


@functools.cache
def _files_of(folder: Path) -> StaticFiles:
    """Shared by all applications of this process."""
    return StaticFiles(folder)


@functools.cache
def _policy_for(site: Path) -> str:
    """Returns the policy of the documentation: the theme has scripts in its pages, styles in attributes,
    icons as data, and a search that runs in a worker.
    """
    script_hashes = _files_of(site).script_hashes()
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    rules |= {
        "script-src": " ".join(["'self'", *script_hashes]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
        "worker-src": "'self'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


def _base_url(request: Request) -> str:
    """Where this server is reached, as the client asked for it."""
    return f"{request.url.scheme}://{request.url.netloc}"
