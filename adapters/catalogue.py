"""Reads a tenant's adapters, their versions and their events; changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass

from adapters import events
from adapters.bases import Bases
from adapters.errors import AdapterNotFound, VersionNotFound
from adapters.events import EventRepository
from adapters.models import Adapter, AdapterEvent, AdapterVersion
from adapters.repository import AdapterRepository
from db.session import Database
from tenants.object_names import NamedObject, NameRepository

MAX_VERSION = 10**9 - 1


@dataclass(frozen=True, slots=True)
class AdapterWithVersion:
    """An adapter and the version that represents it: the active one, else the latest, if any."""

    adapter: Adapter
    version: AdapterVersion | None


class AdapterCatalogue:
    """Tenants' adapters on the bases that are served. An adapter is given as `Bases.reference` says."""

    def __init__(self, database: Database, bases: Bases) -> None:
        self._database = database
        self.bases = bases

    async def adapters(
        self,
        tenant_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
        name: str | None = None,
    ) -> list[AdapterWithVersion]:
        """Returns adapters after the one whose id is `after`, in order of creation."""
        async with self._database.read(tenant_id) as session:
            page = await AdapterRepository(session, tenant_id).page(
                self.bases, after=after, limit=limit, newest_first=newest_first, name=name
            )
        return [AdapterWithVersion(*row) for row in page]

    async def count(self, tenant_id: str) -> int:
        """Returns the number of adapters, as the plan's limit counts them."""
        async with self._database.read(tenant_id) as session:
            return await AdapterRepository(session, tenant_id).count()

    async def get(self, tenant_id: str, adapter: str) -> AdapterWithVersion:
        """Returns an adapter by id or name. Raises AdapterNotFound."""
        async with self._database.read(tenant_id) as session:
            return await self._shown(AdapterRepository(session, tenant_id), adapter)

    async def search(self, tenant_id: str, part: str, *, limit: int) -> Sequence[Adapter]:
        """Returns adapters with `part` in their name, in any case; names that begin with it come
        first.
        """
        async with self._database.read(tenant_id) as session:
            return await AdapterRepository(session, tenant_id).search(self.bases, part, limit)

    async def versions(
        self,
        tenant_id: str,
        adapter: str,
        *,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> tuple[AdapterWithVersion, list[AdapterVersion]]:
        """Returns the adapter and a page of its versions, in any state. Raises AdapterNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            shown = await self._shown(repository, adapter)
            page = await repository.version_page(
                shown.adapter.id, after=after, limit=limit, newest_first=newest_first
            )
        return shown, page

    async def version(self, tenant_id: str, adapter: str, version: int) -> tuple[Adapter, AdapterVersion]:
        """Returns an adapter and one version. Raises AdapterNotFound, VersionNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            shown = await self._shown(repository, adapter)
            known = 0 < version <= MAX_VERSION
            row = await repository.version(shown.adapter.id, version) if known else None
        if row is None:
            raise VersionNotFound(shown.adapter.name, version)
        return shown.adapter, row

    async def events(
        self,
        tenant_id: str,
        adapter: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[AdapterEvent]:
        """Returns a page of the adapter's events. Raises AdapterNotFound, UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            shown = await self._shown(AdapterRepository(session, tenant_id), adapter)
            events = EventRepository(session, tenant_id)
            if after is not None:
                await events.require(after, shown.adapter.id)
            return await events.page(shown.adapter.id, after=after, limit=limit, newest_first=newest_first)

    async def last_events(self, tenant_id: str, adapter_ids: Collection[str]) -> dict[str, AdapterEvent]:
        """Returns the latest event of each of these adapters, by the adapter's id."""
        async with self._database.read(tenant_id) as session:
            events = await EventRepository(session, tenant_id).last_of(adapter_ids)
        return {event.adapter_id: event for event in events}

    async def names(
        self, tenant_id: str, adapter_ids: Collection[str], others: Collection[str] = ()
    ) -> tuple[Mapping[str, tuple[str, bool]], Mapping[str, NamedObject]]:
        """Returns names by id: of adapters on any base with whether they are deleted, and of `others`, the
        keys, users and projects that the ledger stores beside adapters.
        """
        if not (adapter_ids or others):
            return {}, {}
        async with self._database.read(tenant_id) as session:
            adapters = AdapterRepository(session, tenant_id)
            found = await adapters.names(adapter_ids) if adapter_ids else {}
            return found, await NameRepository(session, tenant_id).of(others) if others else {}

    def follow(
        self, tenant_id: str, adapter_id: str, after: str | None = None
    ) -> AsyncIterator[list[AdapterEvent]]:
        """Follows an adapter's events, see `events.follow`."""
        return events.follow(self._database, tenant_id, adapter_id, after)

    async def _shown(self, repository: AdapterRepository, adapter: str) -> AdapterWithVersion:
        found = await repository.find_with_version(self.bases, self.bases.reference(adapter))
        if found is None:
            raise AdapterNotFound(adapter)
        return AdapterWithVersion(*found)
