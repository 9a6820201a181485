"""Reads query strings of reports: repeated parameters, with or without the brackets of OpenAI's client.

`billing.reports` validates the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Query, Request

from api.openapi.routing import texts_query
from billing.reports.buckets import MAX_FILTER, MAX_TIME, MAX_VALUE_LEN

Repeated = list[str] | None
# Constraints for the OpenAPI document only: `billing.reports` checks them with error messages of its own.
_TIME = {"minimum": 0, "maximum": MAX_TIME}
Time = Annotated[int, Query(description="Unix seconds.", json_schema_extra=dict(_TIME))]
EndTime = Annotated[int | None, Query(description="Unix seconds; now.", json_schema_extra=dict(_TIME))]


def among(values: Iterable[str]) -> Any:
    """A parameter that is one of `values`."""
    return Query(json_schema_extra={"enum": [*values]})


def repeated(name: str, values: Iterable[str]) -> Any:
    """A parameter that comes any number of times, each time as one of `values`."""
    return Query(alias=f"{name}[]", json_schema_extra={"items": {"type": "string", "enum": [*values]}})


def matching(name: str) -> Any:
    """A parameter that comes any number of times: only usage with one of the values is reported."""
    return texts_query(name, MAX_FILTER, maxLength=MAX_VALUE_LEN)


def at_most(largest: int) -> Any:
    """A parameter from 1 to `largest`."""
    return Query(json_schema_extra={"minimum": 1, "maximum": largest})


class ReportQuery:
    """The query string of a request."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def values(self, name: str, bracketed: Repeated) -> Repeated:
        """Of a repeated parameter, `bracketed` being those that came with brackets; None for none."""
        return [*(bracketed or ()), *self._query.getlist(name)] or None
