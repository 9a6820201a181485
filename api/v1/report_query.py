"""Query strings of reports: repeated parameters, taken with and without the brackets of the stock client.

Owns reading them. Which values there may be is `billing.reports`' to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request

from api.pages import refuse_unknown

Repeated = list[str] | None


class ReportQuery:
    """The query string of a request, of which `single` and `repeated` are known. Raises
    UnsupportedParameter for others.
    """

    def __init__(self, request: Request, single: Iterable[str], repeated: Iterable[str]) -> None:
        known = {*single, *(form for name in repeated for form in (name, f"{name}[]"))}
        self._query = request.query_params
        refuse_unknown(list(self._query), frozenset(known))

    def values(self, name: str, bracketed: Repeated) -> Repeated:
        """Of a repeated parameter, `bracketed` being those that came with brackets; None for none."""
        return [*(bracketed or ()), *self._query.getlist(name)] or None
