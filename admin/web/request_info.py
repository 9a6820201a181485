"""Extracts facts of a request: client address, request id, origin and pagination cursor."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_PATH_LEN = 2000


def address_of(request: Request) -> str:
    """The client's, as seen through trusted proxies."""
    return request.client.host if request.client else "unknown"


def request_id_of(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


def after_of(request: Request, pattern: re.Pattern[str]) -> str | None:
    """The last entry of the page before; None: the list begins. 404 where its id is not like `pattern`."""
    after = request.query_params.get("after")
    if after is not None and pattern.fullmatch(after) is None:
        raise HTTPException(404, "This page of the list doesn't exist.")
    return after


def path_to_return_to(request: Request) -> str:
    """Returns the page asked for, as a path below the console with its query; "" for the first page, a form
    or a file.
    """
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    is_page = request.method == "GET" and "." not in path.rpartition("/")[2] and not path.endswith("/export")
    if not is_page or path in ("", "/") or path.startswith("//"):
        return ""
    query = request.url.query
    wanted = quote(path, safe="/~") + (f"?{query}" if query else "")
    return wanted if len(wanted) <= MAX_PATH_LEN else ""


def origin_of(request: Request) -> str:
    """Returns this server's origin, as the browser sees it."""
    return f"{request.url.scheme}://{request.url.netloc}"


def console_url_of(request: Request, origin: str) -> str:
    """Returns where browsers find the console, without a slash at the end. `origin`: the configured one;
    empty: the request's.
    """
    return f"{origin or origin_of(request)}{request.scope.get('root_path', '')}"


def link_with_token(request: Request, origin: str, path: str, token: str) -> str:
    """Returns a link to a page of the console with the token behind its #, which browsers do not send, so
    that no log has it. `origin`: the configured one; empty: the request's.
    """
    return f"{origin or origin_of(request)}{request.scope.get('root_path', '')}{path}#{token}"
