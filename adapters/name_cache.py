"""Looks up the names of adapters by digest and of tenants by id, and caches them for a minute.

Engines know adapters only by digest; the console shows names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from adapters.repository import AdapterDirectory
from db.session import EVERY_TENANT, Database
from tenants.repository import TenantDirectory

KEPT_SECONDS = 60.0
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class AdapterName:
    tenant_id: str
    tenant: str
    adapter_id: str
    adapter: str
    version: int


class AdapterNameCache:
    """Names of adapters by digest and of tenants by id, at most a minute old."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._adapters: dict[str, AdapterName | None] = {}
        self._tenants: dict[str, str | None] = {}
        self._since = clock()

    async def of(
        self, digests: Collection[str], tenant_ids: Collection[str]
    ) -> tuple[Mapping[str, AdapterName], Mapping[str, str]]:
        """Returns names by digest and by tenant id, without unknown ones. Of several adapters with the same
        digest, one. Raises DatabaseUnavailable.
        """
        if self._clock() - self._since > KEPT_SECONDS or len(self._adapters) > MAX_KEPT:
            self._adapters, self._tenants, self._since = {}, {}, self._clock()
        new_digests = [digest for digest in set(digests) if digest not in self._adapters]
        new_tenants = [tenant_id for tenant_id in set(tenant_ids) if tenant_id not in self._tenants]
        if new_digests or new_tenants:
            async with self._database.read(EVERY_TENANT) as session:
                adapters = await AdapterDirectory(session).named(new_digests)
                tenants = await TenantDirectory(session).names(new_tenants)
            self._adapters |= dict.fromkeys(new_digests) | {
                row.digest: AdapterName(row.tenant_id, row.tenant, row.adapter_id, row.adapter, row.version)
                for row in adapters
                if row.digest is not None
            }
            self._tenants |= dict.fromkeys(new_tenants) | dict(tenants)
        names = {digest: name for digest in digests if (name := self._adapters[digest]) is not None}
        called = {one: tenant for one in tenant_ids if (tenant := self._tenants[one]) is not None}
        return names, called
