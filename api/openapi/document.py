"""Builds the OpenAPI document: FastAPI's view of the routes, with schemas, errors, links and texts added.

Tests are generated from it, and the API reference is made from it: it must say what the server does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from api.openapi import errors, guide
from api.openapi.components import components_of, schema_of
from api.openapi.links import add_links
from api.openapi.routing import Contract, reference
from api.openapi.rules import RULES

_WORD = re.compile(r"[A-Z]?[a-z0-9]+")


def build_document(
    title: str,
    version: str,
    routes: Sequence[BaseRoute],
    bodies: Sequence[Any],
    contracts: Mapping[str, Contract],
) -> dict[str, Any]:
    """Returns the complete document of `routes`.

    Args:
        bodies: the types that routes and other types refer to by name, such as request bodies.
        contracts: what each operation promises, by its id.
    """
    made = get_openapi(
        title=title,
        version=version,
        description=guide.DESCRIPTION,
        tags=[{"name": name, "description": text} for name, text in guide.TAGS.items()],
        routes=routes,
        servers=[{"url": "/"}],
    )
    made["x-tagGroups"] = [{"name": name, "tags": tags} for name, tags in guide.GROUPS.items()]
    types = [kind for contract in contracts.values() for kind in contract.types]
    schemas = components_of([*bodies, *types])
    for name, rules in RULES.items():
        schemas[name]["allOf"] = rules
    made["components"] = {
        "schemas": dict(sorted(schemas.items())) | {"Error": errors.SCHEMA},
        "responses": {},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": guide.KEYS}},
    }
    for path, verb, operation in operations_of(made):
        contract = contracts[operation["operationId"]]
        _complete(path, verb, operation)
        _add_response(operation, contract)
        _add_errors(made, verb, operation, contract)
    add_links(made)
    return made


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, verb and operation of each."""
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield path, verb, operation


def _complete(path: str, verb: str, operation: dict[str, Any]) -> None:
    """Summary, security and parameters. Routes below /v1 need a key unless they say otherwise."""
    name = operation["operationId"]
    operation["summary"] = guide.SUMMARIES.get(name) or _sentence(name)
    operation["description"] = " ".join(operation.get("description", "").split())
    operation.setdefault("security", [{"key": []}] if path.startswith("/v1/") else [])
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
        parameter["schema"].pop("title", None)
        if parameter["in"] == "path":
            parameter["description"] = guide.PATH_PARAMETERS[parameter["name"]]


def _sentence(operation_id: str) -> str:
    """`listProjectKeys` as "List project keys"."""
    words = [word.lower() for word in _WORD.findall(operation_id)]
    text = " ".join(guide.SPELLINGS.get(word, word) for word in words)
    return text[0].upper() + text[1:]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, and never null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    return kinds[0] | {name: value for name, value in schema.items() if name != "anyOf"}


def _add_response(operation: dict[str, Any], contract: Contract) -> None:
    """The schema of successful responses."""
    for status, response in operation["responses"].items():
        if not status.startswith("2"):
            continue
        content = response.setdefault("content", {})
        if response.get("description") in (None, "Successful Response"):
            response["description"] = "The request succeeded."
        if contract.response is not None:
            content["application/json"] = {"schema": schema_of(contract.response)}
        if contract.events:
            content["text/event-stream"] = {"schema": _event_schema(contract)}
            response["description"] += guide.EVENTS


def _event_schema(contract: Contract) -> dict[str, Any]:
    """The schema of one server-sent event, which has its JSON in `data`. The last event of a stream has an
    error if it broke off, else `[DONE]`.
    """
    kinds = [*map(schema_of, contract.events), reference("Error")]
    data = {
        "type": "string",
        "anyOf": [
            {"contentMediaType": "application/json", "contentSchema": {"anyOf": kinds}},
            {"const": "[DONE]"},
        ],
    }
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _add_errors(document: dict[str, Any], verb: str, operation: dict[str, Any], contract: Contract) -> None:
    """The errors that the operation can give, as components that operations share."""
    # FastAPI's own is never sent: a parameter of the wrong form is a 400 here.
    if "HTTPValidationError" in str(operation["responses"].get("422")):
        del operation["responses"]["422"]
    found: list[Exception] = [*errors.EVERY]
    is_keyed = bool(operation.get("security"))
    if is_keyed:
        found += errors.KEYED
    if "requestBody" in operation:
        found += errors.WITH_BODY
    found += contract.errors
    if is_keyed and verb == "post":
        found += errors.IDEMPOTENT
    for status, response in errors.error_responses(found).items():
        names = response["content"]["application/json"]["examples"]
        name = ".".join((status, *names))
        shared = document["components"]["responses"].setdefault(name, response)
        operation["responses"][status] = reference(name, "responses") if shared == response else response
