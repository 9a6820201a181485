"""Query strings of reports: repeated parameters, taken with and without the brackets of the stock client.

Owns reading them. Which values there may be is `billing.reports`' to say.
"""

from __future__ import annotations

from fastapi import Request

Repeated = list[str] | None


class ReportQuery:
    """The query string of a request."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params

    def values(self, name: str, bracketed: Repeated) -> Repeated:
        """Of a repeated parameter, `bracketed` being those that came with brackets; None for none."""
        return [*(bracketed or ()), *self._query.getlist(name)] or None
