"""The OpenAPI document: what FastAPI sees of the routes, with the bodies that msgspec reads put in.

Owns the schemas of request bodies and of the error envelope in that document. Tests are generated from it, so
it must say what the decoders do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.openapi_links import add_links

_REF = "#/components/schemas/{name}"

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
    }


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: _error("A field is wrong, unknown or not supported; `param` names it."),
    401: _error("No valid API key."),
    403: _error("The key may not do this."),
    404: _error("There is no such thing, or it is another tenant's."),
    409: _error("It exists and is not ready."),
    408: _error("The body came too slowly."),
    413: _error("The body, or the file in it, is too large."),
    415: _error("The body, or the file in it, is of a kind that is not taken."),
    422: _error("An adapter's file is not one that can be served; `param` names what is wrong in it."),
    431: _error("The request line and headers are larger than 64 kB."),
    429: _error("More than the tenant may have at once."),
    "5XX": _error("The server is at fault, or busy: `x-should-retry` says whether to try again."),
}


EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "application/json": {},
            "text/event-stream": {"schema": {"type": "string", "description": "With `stream`."}},
        }
    }
}
"""`responses` of a route that can answer with server-sent events."""

_OF_BODIES = ("408", "413", "415", "422")
"""Errors that only a request with a body can have."""


def json_body(name: str) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is read by msgspec."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF.format(name=name)}}},
        }
    }


def form_body(schema: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a form with a file."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def install(app: FastAPI, bodies: Sequence[type[msgspec.Struct]]) -> None:
    """Have `app.openapi()` build the complete document, with the schemas of `bodies` that routes name."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            components = made.setdefault("components", {})
            schemas = components.setdefault("schemas", {})
            schemas |= msgspec.json.schema_components(bodies, ref_template=_REF)[1]
            schemas["Error"] = ERROR_SCHEMA
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            _settle(made)
            add_links(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _settle(document: dict[str, Any]) -> None:
    """Every /v1 route wants a key unless it says otherwise; and FastAPI's own 422 is never sent, because the
    envelope's 400 stands for it.
    """
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if "requestBody" not in operation:
                for status in _OF_BODIES:
                    operation["responses"].pop(status, None)
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
            if "HTTPValidationError" in str(operation.get("responses", {}).get("422")):
                del operation["responses"]["422"]
            if path.startswith("/v1/"):
                operation.setdefault("security", [{"key": []}])
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, and never null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return kinds[0] | {name: value for name, value in schema.items() if name != "anyOf"}
