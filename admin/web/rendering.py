"""Renders the console's templates, and its redirects and error pages."""

from __future__ import annotations

import functools
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from admin import formatting
from admin.charts import svg
from admin.navigation import OPERATOR_SECTIONS, grouped, sections_for
from admin.services import ErrorMapping
from admin.web.assets import console_assets
from admin.web.principals import Operator, Principal, TenantUser
from admin.web.request_info import request_id_of
from db.errors import UnknownCursor

HERE = Path(__file__).parent.parent
OPERATOR_HOME = "/operator"
_MISSING = "This page doesn't exist. Check the address, or start from the overview."
_TITLES = {
    400: "Bad request",
    403: "Access denied",
    404: "Page not found",
    405: "Access denied",
    500: "Something went wrong",
}


class Renderer:
    """Templates of one console."""

    def __init__(self, error_mapping: ErrorMapping) -> None:
        self._error_mapping = error_mapping
        self._templates = _templates()

    def render(self, request: Request, template: str, status: int = 200, **context: object) -> HTMLResponse:
        """`principal` in the context: the signed-in user, for pages with the navigation."""
        principal = context.get("principal")
        if isinstance(principal, TenantUser | Operator):
            if isinstance(principal, TenantUser):
                context |= {"navigation": sections_for(principal.may), "home": "/"}
            else:
                context |= {"navigation": grouped(OPERATOR_SECTIONS), "home": OPERATOR_HOME}
            context["take_flash"] = lambda: _take_flash(request, principal)
        root = request.scope.get("root_path", "")
        guest = getattr(request.state, "guest", None)
        context["incidents"] = getattr(request.state, "incidents", ())
        text = self._templates.get_template(template).render(root=root, guest=guest, **context)
        return HTMLResponse(text, status_code=status)

    @staticmethod
    def redirect(request: Request, path: str) -> RedirectResponse:
        """Redirects to another page of the console."""
        return RedirectResponse(quote(request.scope.get("root_path", "")) + path, status_code=303)

    async def error_page(self, request: Request, error: Exception) -> Response:
        """Renders an error that the caller caused, or that passes: a page, or JSON for a script."""
        if isinstance(error, UnknownCursor):
            error = HTTPException(404, "This page of the list doesn't exist.")
        if isinstance(error, HTTPException):
            title = _TITLES.get(error.status_code, "This didn't work")
            if error.detail == HTTPStatus.NOT_FOUND.phrase:
                # No route, or one of operators: the page must not reveal which.
                request.state.principal = None
                return self._error(request, error.status_code, title, _MISSING, None)
            return self._error(request, error.status_code, title, str(error.detail), None)
        status, envelope = self._error_mapping.describe(error)
        body = envelope["error"]
        title = _TITLES.get(status, "Try again in a moment" if status >= 500 else "This didn't work")
        return self._error(
            request, status, title, formatting.sentence(str(body["message"])), body.get("param")
        )

    def _error(self, request: Request, status: int, title: str, text: str, param: str | None) -> Response:
        if is_by_script(request):
            return JSONResponse({"error": {"message": text, "param": param}}, status_code=status)
        principal = getattr(request.state, "principal", None)
        if principal is None:
            return self.render(request, "notice.html", status, title=title, text=text)
        request_id = request_id_of(request) if status >= 500 else None
        return self.render(
            request,
            "error.html",
            status,
            principal=principal,
            section="",
            title=title,
            text=text,
            request_id=request_id,
        )

    async def internal_error(self, request: Request, error: Exception) -> Response:
        """Renders the page of an unexpected error, which the server logs."""
        text = "An unexpected error occurred. Try again; if it happens again, contact support."
        return self._error(request, 500, _TITLES[500], text, None)


def is_by_script(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


def _take_flash(request: Request, principal: Principal) -> str:
    """Returns the flash message; the endpoint clears it once the page is rendered."""
    request.state.has_shown_flash = bool(principal.session.flash)
    return principal.session.flash


@functools.cache
def _templates() -> Environment:
    """Compiled once in a process, however many consoles it has."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["asset"] = console_assets().name_in_url
    templates.filters |= formatting.FILTERS | svg.FILTERS
    return templates
