"""Decides which adapters the engine keeps loaded, and tells it: of every tenant the oldest, as many as its
plan says.

The rule needs no state of its own: after a restart of the engine, which forgets all pins, it gives the same
result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from adapters.bases import Bases
from adapters.models import AdapterVersion
from adapters.repository import AdapterDirectory, AdapterRepository
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef, EngineInfo
from telemetry.tasks import cancel
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
    """Pins adapters in the engines of each base. `start` it in the process that should pin again after an
    engine's restart, and `close` it at its end; a process that only announces changes needs neither.
    """

    def __init__(self, database: Database, engines: Mapping[str, Engine]) -> None:
        """`engines`: by base, the default one first."""
        self._database = database
        self._engines = engines
        self._bases = Bases(*engines)
        self._pinned: dict[tuple[str, str], AdapterRef] = {}
        """By base and digest: two bases of the same weights have adapters of one digest."""
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._watch is None:
            self._watch = asyncio.create_task(self._announce_to_each(), name="announcement of pins")

    async def close(self) -> None:
        watch, self._watch = self._watch, None
        await cancel(watch)

    async def changed(
        self,
        tenant_id: str,
        base: str,
        *,
        now: Sequence[AdapterRef] = (),
        before: Sequence[AdapterRef] = (),
    ) -> None:
        """Loads the adapters of `base` that are served `now`, releases those served `before`, and pins as
        many of the tenant's adapters as its plan allows on all bases together. Raises DatabaseUnavailable.
        """
        engine = self._engines[base]
        if not engine.ready:
            return
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan_of(tenant_id)
            limit = 0 if plan is None else plan.pinned_adapters
            kept = await AdapterRepository(session, tenant_id).first_serving(self._bases, limit)
            digests = {version.digest for adapter, version in kept if adapter.base == base}
            # Two tenants may have the same weights: they share one engine slot and one pin.
            gone = [
                ref
                for ref in before
                if ref.digest not in digests
                and not await AdapterDirectory(session).is_served(ref.digest, base=base, besides=tenant_id)
            ]
        for ref in gone:
            engine.prefetch(ref, False)
        for ref in now:
            engine.prefetch(ref)
        for adapter, version in kept:
            ref = ref_of(version)
            self._engines[adapter.base].prefetch(ref, True)
            self._pinned[adapter.base, ref.digest] = ref

    async def announce(self) -> int:
        """Pins all tenants' adapters that plans allow, and releases those that this process has pinned
        before: the engine may have restarted, and a plan may have changed. Returns how many are pinned.
        Raises DatabaseUnavailable.
        """
        pinned: dict[tuple[str, str], AdapterRef] = {}
        after = ""
        while True:
            async with self._database.read(EVERY_TENANT) as session:
                page = await AdapterDirectory(session).pinned(self._bases, after=after, limit=PAGE)
            pinned |= {(row.base, row.digest): AdapterRef(row.digest, row.rank) for row in page}
            if len(page) < PAGE:
                break
            after = page[-1].key
        for (base, digest), ref in self._pinned.items():
            if (base, digest) not in pinned:
                self._engines[base].prefetch(ref, False)
        for (base, _), ref in pinned.items():
            self._engines[base].prefetch(ref, True)
        self._pinned = pinned
        return len(pinned)

    async def _announce_to_each(self) -> None:
        told: set[str] = set()
        due = 0.0
        while True:
            now = time.monotonic()
            serving = {
                engine.info.incarnation
                for engine in self._engines.values()
                if engine.ready and engine.info is not None
            }
            if serving and (serving - told or now >= due):
                try:
                    num_pinned = await self.announce()
                except DatabaseUnavailable as error:
                    log.warning("pins not announced yet", error=str(error))
                else:
                    if serving - told:
                        log.info("pins announced", incarnations=sorted(serving), pins=num_pinned)
                    told, due = serving, now + ANNOUNCE_INTERVAL
            await asyncio.sleep(LOOK_INTERVAL)


def ref_of(version: AdapterVersion) -> AdapterRef:
    """Returns the reference of a packed version."""
    assert version.digest is not None
    assert version.rank is not None
    return AdapterRef(version.digest, version.rank)
