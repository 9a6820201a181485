"""Finds sections, adapters, keys and projects by name, and requests by id: for the search page and the
command palette.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass

from adapters.catalogue import AdapterCatalogue
from admin.navigation import ADAPTERS, KEYS, PROJECTS, SECTIONS, USAGE, Section
from admin.usage.request_finder import RequestFinder
from telemetry.tasks import gather_all
from tenants.object_names import NameService, SearchedKind
from tenants.roles import Right

_REQUEST_ID = re.compile(r"[a-z]{1,16}[-_][A-Za-z0-9_-]{16,}")
"""Ids that the service makes: other texts are not looked up as one."""
MAX_MATCHES = 20
MAX_QUERY_LEN = 100


@dataclass(frozen=True)
class Match:
    kind: str
    title: str
    path: str
    """Below the console's root."""

    def as_json(self, root: str) -> dict[str, str]:
        return asdict(self) | {"path": root + self.path}


class SearchPage:
    def __init__(self, catalogue: AdapterCatalogue, names: NameService, requests: RequestFinder) -> None:
        self._catalogue = catalogue
        self._names = names
        self._requests = requests

    async def find(self, tenant_id: str, query: str, may: Callable[[Right], bool]) -> list[Match]:
        """Returns at most `MAX_MATCHES` of what a user with these rights can open; names that begin with the
        query come first. Without a query: all sections. Raises DatabaseUnavailable.
        """
        wanted = " ".join(query.replace("\x00", " ").split())[:MAX_QUERY_LEN]
        found = [
            Match("Page", one.title, one.path)
            for one in SECTIONS
            if _can_see(one, may) and wanted.casefold() in one.title.casefold()
        ]
        if wanted:
            asked: list[Awaitable[Sequence[Match]]] = []
            if _can_see(ADAPTERS, may):
                asked.append(self._adapters(tenant_id, wanted))
            if _can_see(KEYS, may):
                asked.append(self._named(tenant_id, "key", "API key", KEYS, wanted))
            if _can_see(PROJECTS, may):
                asked.append(self._named(tenant_id, "project", "Project", PROJECTS, wanted))
            if _can_see(USAGE, may) and _REQUEST_ID.fullmatch(wanted):
                asked.append(self._request(tenant_id, wanted))
            for matches in await gather_all(*asked):
                found += matches
            found.sort(key=lambda one: not one.title.casefold().startswith(wanted.casefold()))
        return found[:MAX_MATCHES]

    async def _adapters(self, tenant_id: str, wanted: str) -> list[Match]:
        found = await self._catalogue.search(tenant_id, wanted, limit=MAX_MATCHES)
        return [Match("Adapter", one.name, f"{ADAPTERS.path}/{one.id}") for one in found]

    async def _request(self, tenant_id: str, wanted: str) -> list[Match]:
        path = await self._requests.path(tenant_id, wanted)
        return [] if path is None else [Match("Request", wanted, f"{USAGE.path}/requests/{path}")]

    async def _named(
        self, tenant_id: str, kind: SearchedKind, title: str, section: Section, wanted: str
    ) -> list[Match]:
        found = await self._names.search(tenant_id, kind, wanted, limit=MAX_MATCHES)
        return [Match(title, name, f"{section.path}/{id_}") for id_, name in found]


def _can_see(section: Section, may: Callable[[Right], bool]) -> bool:
    return section.right is None or may(section.right)
