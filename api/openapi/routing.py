"""Defines a router whose routes carry their part of the OpenAPI document: the response's type and the errors.

A handler's return annotation, a TypedDict, is the schema of its response. mypy compares it with the code,
tests with real responses; nothing is validated when a request is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints, is_typeddict

from fastapi import APIRouter, Query

EndpointT = TypeVar("EndpointT", bound=Callable[..., Any])

_ERRORS, _ANSWERS = "documented_errors", "documented_answers"
"""Attributes of handlers, set by the decorators below."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What the document says of one operation beside what FastAPI sees."""

    response: Any
    """The type of the JSON response, or a tuple of several; None for other media types."""
    events: tuple[Any, ...]
    """The types of server-sent events' data; none for an operation that streams none."""
    errors: tuple[Exception, ...]
    """One example of each error of its own; those of every operation are in `api.openapi.errors`."""

    @property
    def types(self) -> Iterator[Any]:
        if isinstance(self.response, tuple):
            yield from self.response
        elif self.response is not None:
            yield self.response
        yield from self.events


def fails_with(*errors: Exception) -> Callable[[EndpointT], EndpointT]:
    """Documents errors of a handler, each by an example. Their statuses and bodies come from the table of
    errors.
    """

    def mark(endpoint: EndpointT) -> EndpointT:
        setattr(endpoint, _ERRORS, errors)
        return endpoint

    return mark


def answers(response: Any, *events: Any) -> Callable[[EndpointT], EndpointT]:
    """Documents a handler that returns a Response: one with JSON of type `response`, or of one of several in
    a tuple, or with server-sent events of one of the types `events`.
    """

    def mark(endpoint: EndpointT) -> EndpointT:
        setattr(endpoint, _ANSWERS, (response, events))
        return endpoint

    return mark


class Router(APIRouter):
    """FastAPI's router, which documents return annotations and does not validate responses.

    Args:
        errors: examples of the errors that every route of this router can give.
    """

    def __init__(self, *, errors: tuple[Exception, ...] = (), **options: Any) -> None:
        super().__init__(**options)
        self._errors = errors
        self.contracts: dict[str, Contract] = {}
        """By operation id."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        returned = get_type_hints(endpoint).get("return")
        is_json = is_typeddict(getattr(returned, "__origin__", returned))
        if is_json:
            options["response_model"] = dict[str, Any]
        super().add_api_route(path, endpoint, **options)
        operation_id = options.get("operation_id")
        if operation_id is not None:
            response, events = getattr(endpoint, _ANSWERS, (returned if is_json else None, ()))
            errors = (*self._errors, *getattr(endpoint, _ERRORS, ()))
            self.contracts[operation_id] = Contract(response, events, errors)

    def include_router(self, router: APIRouter, **options: Any) -> None:
        super().include_router(router, **options)
        if isinstance(router, Router):
            self.contracts |= router.contracts


def json_body(name: str) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is read by msgspec."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference(name)}}}}


def form_body(schema: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a form with a file."""
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def texts_query(name: str, most: int, **limits: int) -> Any:
    """A query parameter that comes at most `most` times, with or without brackets. Its values have no U+0000
    and keep the `limits` of JSON Schema; the route checks them.
    """
    value = {"type": "string", "pattern": r"^[^\x00]*$", **limits}
    return Query(alias=f"{name}[]", json_schema_extra={"items": value, "maxItems": most})


def reference(name: str, kind: str = "schemas") -> dict[str, Any]:
    """A reference to a component of the document."""
    return {"$ref": f"#/components/{kind}/{name}"}
