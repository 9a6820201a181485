"""Decides which adapters the engine keeps loaded, and tells it: of every tenant the oldest, as many as its
plan says.

The rule needs no state of its own: after a restart of the engine, which forgets all pins, it gives the same
result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from adapters.models import AdapterVersion
from adapters.repository import AdapterDirectory, AdapterRepository
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef, EngineInfo
from tenants.repository import TenantDirectory

log = structlog.get_logger(__name__)

PAGE = 200
ANNOUNCE_INTERVAL = 60.0
"""Seconds after which the engine gets all pins again: plans may have changed, and messages may have been
lost.
"""
LOOK_INTERVAL = 0.5
"""Seconds between two checks whether the engine has restarted."""


class Engine(Protocol):
    """The part of an engine client that is used here."""

    @property
    def ready(self) -> bool: ...

    @property
    def info(self) -> EngineInfo | None: ...

    def prefetch(self, adapter: AdapterRef, pinned: bool | None = None) -> None: ...


class Pinning:
    """Pins adapters in one engine. `start` it in the process that should pin again after the engine's
    restart, and `close` it at its end; a process that only announces changes needs neither.
    """

    def __init__(self, database: Database, engine: Engine, base: str) -> None:
        self._database = database
        self._engine = engine
        self._base = base
        self._pinned: dict[str, AdapterRef] = {}
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._announce_to_each(), name="announcement of pins")

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        while watch is not None and not watch.done():
            watch.cancel()
            await asyncio.wait({watch}, timeout=0.2)

    async def changed(
        self, tenant_id: str, *, now: Sequence[AdapterRef] = (), before: Sequence[AdapterRef] = ()
    ) -> None:
        """Loads the adapters that are served `now`, releases those served `before`, and pins as many of the
        tenant's adapters as its plan allows. Raises DatabaseUnavailable.
        """
        if not self._engine.ready:
            return
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan_of(tenant_id)
            limit = 0 if plan is None else plan.pinned_adapters
            kept = await AdapterRepository(session, tenant_id).first_serving(self._base, limit)
            digests = {version.digest for version in kept}
            # Two tenants may have the same weights: they share one engine slot and one pin.
            gone = [
                ref
                for ref in before
                if ref.digest not in digests
                and not await AdapterDirectory(session).is_served(ref.digest, besides=tenant_id)
            ]
        for ref in gone:
            self._engine.prefetch(ref, False)
        for ref in now:
            self._engine.prefetch(ref)
        for ref in map(ref_of, kept):
            self._engine.prefetch(ref, True)
            self._pinned[ref.digest] = ref

    async def announce(self) -> int:
        """Pins all tenants' adapters that plans allow, and releases those that this process has pinned
        before: the engine may have restarted, and a plan may have changed. Returns how many are pinned.
        Raises DatabaseUnavailable.
        """
        pinned: dict[str, AdapterRef] = {}
        after = ""
        while True:
            async with self._database.read(EVERY_TENANT) as session:
                page = await AdapterDirectory(session).pinned(self._base, after=after, limit=PAGE)
            pinned |= {row.digest: AdapterRef(row.digest, row.rank) for row in page}
            if len(page) < PAGE:
                break
            after = page[-1].adapter_id
        for digest, ref in self._pinned.items():
            if digest not in pinned:
                self._engine.prefetch(ref, False)
        for ref in pinned.values():
            self._engine.prefetch(ref, True)
        self._pinned = pinned
        return len(pinned)

    async def _announce_to_each(self) -> None:
        told: str | None = None
        due = 0.0
        while True:
            info, now = self._engine.info, time.monotonic()
            if self._engine.ready and info is not None and (info.incarnation != told or now >= due):
                try:
                    num_pinned = await self.announce()
                except DatabaseUnavailable as error:
                    log.warning("pins not announced yet", error=str(error))
                else:
                    if info.incarnation != told:
                        log.info("pins announced", incarnation=info.incarnation, pins=num_pinned)
                    told, due = info.incarnation, now + ANNOUNCE_INTERVAL
            await asyncio.sleep(LOOK_INTERVAL)


def ref_of(version: AdapterVersion) -> AdapterRef:
    """Returns the reference of a packed version."""
    assert version.digest is not None
    assert version.rank is not None
    return AdapterRef(version.digest, version.rank)
