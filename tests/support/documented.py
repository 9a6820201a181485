"""Compares every response of an application with its OpenAPI document: status, media type and body.

A body may have no field that the document lacks: schemas are closed here, which they are not for clients.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import jsonschema_rs

OPEN = frozenset({"AuditEntry"})
"""Objects with a field whose name is the value of another."""
UNDOCUMENTED = frozenset({405, 499})
"""Statuses of requests that are none of an operation, or whose response nobody reads."""
_ANYTHING: dict[str, Any] = {}
_COMPONENTS = "urn:components"
"""What the document is called in schemas that are taken out of it."""
DISAGREEMENTS: list[str] = []
"""Of all applications of this process, since they were last looked at."""


class Documented:
    """Wraps the application that `api.app.create_app` makes."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.openapi = app.openapi

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        start: dict[str, Any] = {}
        body = bytearray()

        async def record(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                self._compare(scope, start, bytes(body))

        await self._app(scope, receive, record if scope["type"] == "http" else send)

    def _compare(self, scope: Any, start: dict[str, Any], body: bytes) -> None:
        operation = self._document.operation(scope["method"], scope["path"])
        status = start["status"]
        if operation is None or status in UNDOCUMENTED or _is_malformed(scope):
            return
        headers = {name.lower(): value.decode() for name, value in start["headers"]}
        media_type = headers.get(b"content-type", "").partition(";")[0]
        for problem in self._document.problems(operation, status, media_type, body):
            DISAGREEMENTS.append(f"{scope['method']} {scope['path']} {status}: {problem}: {body[:300]!r}")

    def load(self) -> None:
        """Builds the document now, instead of beside the first response."""
        _document_of(self._app)

    @property
    def _document(self) -> _Document:
        return _document_of(self._app)


_DOCUMENTS: list[_Document] = []


def _document_of(app: Any) -> _Document:
    """The same of all applications: their routes do not depend on their services, and building it takes a
    second.
    """
    if not _DOCUMENTS:
        _DOCUMENTS.append(_Document(app.openapi()))
    return _DOCUMENTS[0]


class _Document:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = closed(document)
        components = {"components": self._document["components"]}
        self._registry = jsonschema_rs.Registry([(_COMPONENTS, components)])
        self._operations: dict[str, list[tuple[re.Pattern[str], dict[str, Any]]]] = {}
        for path, verbs in sorted(self._document["paths"].items(), key=lambda item: item[0].count("{")):
            for verb, operation in verbs.items():
                self._operations.setdefault(verb.upper(), []).append((_pattern(path), operation))
        self._validators: dict[str, Any] = {}
        self._found: dict[int, Any] = {}
        """The same by the identity of their schema, which lives as long as the document."""

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        for pattern, operation in self._operations.get(method, ()):
            if pattern.fullmatch(path):
                return operation
        return None

    def problems(self, operation: dict[str, Any], status: int, media_type: str, body: bytes) -> Iterator[str]:
        response = operation["responses"].get(str(status))
        if response is None:
            yield "the status is not documented"
            return
        if "$ref" in response:
            response = self._document["components"]["responses"][response["$ref"].rpartition("/")[2]]
        content = response.get("content", {})
        if media_type not in content:
            yield f"{media_type!r} is not documented"
            return
        schema = content[media_type].get("schema", _ANYTHING)
        if media_type == "text/event-stream":
            schema = schema["properties"]["data"]["anyOf"][0]["contentSchema"]
        for value in _values(media_type, body):
            error = next(self._validator(schema).iter_errors(value), None)
            if error is not None:
                yield f"{error.message} at {error.instance_path}"

    def _validator(self, schema: dict[str, Any]) -> Any:
        if id(schema) in self._found:
            return self._found[id(schema)]
        key = json.dumps(schema)
        if key not in self._validators:
            # By reference: a copy of all components for each schema takes a hundred times as long.
            alone = json.loads(key.replace('"$ref": "#/', f'"$ref": "{_COMPONENTS}#/'))
            self._validators[key] = jsonschema_rs.Draft202012Validator(alone, registry=self._registry)
        self._found[id(schema)] = self._validators[key]
        return self._validators[key]


def _values(media_type: str, body: bytes) -> Iterator[Any]:
    if media_type == "application/json":
        yield json.loads(body)
    elif media_type == "text/event-stream":
        for line in body.splitlines():
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[6:])


def _pattern(path: str) -> re.Pattern[str]:
    literal = re.escape(path).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", literal.replace("{model}", ".+")))


def closed(document: dict[str, Any]) -> dict[str, Any]:
    """The same, with no other properties allowed in objects whose properties are named."""
    document = copy.deepcopy(document)
    for name, schema in document["components"]["schemas"].items():
        if "properties" in schema and name not in OPEN:
            schema.setdefault("additionalProperties", False)
    return document


def _is_malformed(scope: Any) -> bool:
    """Whether the request broke HTTP's own rules: the edge refuses it before it is any operation's."""
    return sum(name == b"host" for name, _ in scope["headers"]) > 1
