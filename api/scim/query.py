"""Reads the parameters of SCIM requests: filter, page, and which attributes to return (RFC 7644, 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.errors import InvalidScim
from api.scim.discovery import MAX_RESULTS
from api.scim.resources import selected
from tenants.provisioning.errors import InvalidFilter
from tenants.provisioning.filters import Filter, attribute_name, parse_filter

DEFAULT_COUNT = 100
_MAX_INDEX = 1 << 31


@dataclass(frozen=True, slots=True)
class Query:
    condition: Filter | None = None
    offset: int = 0
    limit: int = DEFAULT_COUNT
    attributes: tuple[str, ...] = ()
    """In lower case; empty: all."""
    excluded: tuple[str, ...] = ()

    def select(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of the resource that were asked for."""
        return selected(resource, self.attributes, self.excluded)

    def shows(self, attribute: str) -> bool:
        """Whether a response has the attribute, or a part of it."""
        if self.attributes:
            return any(name.partition(".")[0] == attribute for name in self.attributes)
        return attribute not in self.excluded


def read_query(given: Mapping[str, str]) -> Query:
    """Reads a query string. Raises InvalidScim, InvalidFilter."""
    return _query(
        given.get("filter"),
        given.get("startIndex", "1"),
        given.get("count", str(DEFAULT_COUNT)),
        _names(given.get("attributes", "").split(",")),
        _names(given.get("excludedAttributes", "").split(",")),
    )


def read_search(body: Mapping[str, Any]) -> Query:
    """Reads the body of a search. Raises InvalidScim, InvalidFilter."""
    named = [body.get(name) or [] for name in ("attributes", "excludedAttributes")]
    for names in named:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidScim("attributes and excludedAttributes must be lists of names", "invalidValue")
    condition = body.get("filter")
    if condition is not None and not isinstance(condition, str):
        raise InvalidScim("filter must be text", "invalidFilter")
    return _query(condition, body.get("startIndex", 1), body.get("count", DEFAULT_COUNT), *map(_names, named))


def _query(
    condition: str | None, start: Any, count: Any, attributes: tuple[str, ...], excluded: tuple[str, ...]
) -> Query:
    if attributes and excluded:
        raise InvalidScim("send either attributes or excludedAttributes", "invalidValue")
    return Query(
        None if not condition else parse_filter(condition),
        max(1, _integer("startIndex", start)) - 1,
        min(MAX_RESULTS, max(0, _integer("count", count))),
        attributes,
        excluded,
    )


def _integer(name: str, given: Any) -> int:
    try:
        return min(int(given), _MAX_INDEX)
    except (TypeError, ValueError) as error:
        raise InvalidScim(f"{name} must be an integer", "invalidValue") from error


def _names(given: list[str]) -> tuple[str, ...]:
    try:
        return tuple(attribute_name(name.strip()) for name in given if name.strip())
    except InvalidFilter as error:
        raise InvalidScim(str(error), "invalidValue") from error
