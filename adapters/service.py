"""Changes tenants' adapters: renames, activates, rolls back, disables, overrides. Each method is one
transaction and invalidates caches after its commit.

`catalogue` reads adapters, `submission` creates them from files, `deletion` deletes them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from adapters import events
from adapters.announcer import Announcer
from adapters.bases import Bases
from adapters.catalogue import MAX_VERSION, AdapterWithVersion
from adapters.errors import AdapterNotFound, NoPreviousVersion, VersionNotFound, VersionNotReady
from adapters.model_names import MAX_DESCRIPTION, ModelName, check_new_name, checked_part, checked_text
from adapters.models import PENDING, Adapter, AdapterVersion, VersionState
from adapters.pinning import Pinning, ref_of
from adapters.repository import AdapterRepository
from adapters.resolver import ModelCard, ModelResolver, ResolvedModel
from adapters.versions import make_ready
from db.base import new_id
from db.session import Database, WriteSession
from engine.protocol import AdapterRef
from tenants.actors import OPERATOR, SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken

__all__ = [
    "AdapterChanges",
    "AdapterService",
    "AdapterWithVersion",
    "ModelCard",
    "ModelResolver",
    "RegisteredVersion",
    "ResolvedModel",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """A registered version."""

    adapter_id: str
    version: int
    name: str
    """`base:adapter@version`."""
    created: bool
    """False when the adapter had these weights already: nothing was added."""


@dataclass(frozen=True, slots=True)
class AdapterChanges:
    """Changes to an adapter; None leaves a field unchanged."""

    name: str | None = None
    description: str | None = None
    """An empty string removes it."""
    disabled: bool | None = None

    def told(self) -> dict[str, Any]:
        """Returns the changed fields, for the audit log."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class AdapterService:
    """Tenants' adapters on the bases that are served. `pinning`: see `Announcer`."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        bases: Bases,
        pinning: Pinning | None = None,
    ) -> None:
        self._database = database
        self._announcer = Announcer(redis_client, pinning)
        self._bases = bases

    async def update(
        self, tenant_id: str, adapter: str, changes: AdapterChanges, *, by: Actor = SYSTEM
    ) -> AdapterWithVersion:
        """Changes an adapter. Raises AdapterNotFound, NameTaken, InvalidAdapter, ValueError naming
        the field.
        """
        if changes.name is not None:
            checked_part("name", changes.name)
        checked_text("description", changes.description or "", MAX_DESCRIPTION)
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            if changes.name is not None:
                await repository.advisory_lock("adapters")
            row = await self._locked(repository, adapter)
            if changes.name is not None and changes.name != row.name:
                check_new_name(changes.name)
                if await repository.find(self._bases, ModelName(row.base, changes.name)) is not None:
                    raise NameTaken("adapter name", changes.name)
                self._record(session, row, "adapter.renamed", f"{row.name} was renamed to {changes.name}.")
                row.name = changes.name
            if changes.description is not None:
                row.description = changes.description or None
            if changes.disabled is not None:
                await self._set_disabled(session, repository, row, changes.disabled)
            self._announcer.changed(session, tenant_id)
            await session.flush()
            found = await repository.find_with_version(self._bases, ModelName(adapter_id=row.id))
            assert found is not None
            await AuditLog.record(
                session, tenant_id, by, "adapter.updated", ("adapter", row.id), changes.told()
            )
        return AdapterWithVersion(*found)

    async def activate(
        self, tenant_id: str, adapter: str, version: int, *, by: Actor = SYSTEM
    ) -> AdapterWithVersion:
        """Makes `version` the active one, which the unpinned name serves. Raises AdapterNotFound,
        VersionNotFound, VersionNotReady.
        """
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            row = await self._locked(repository, adapter)
            chosen = await self._ready(repository, row, version)
            await self._announcer.activate(session, row, chosen)
            await AuditLog.record(
                session, tenant_id, by, "adapter.activated", ("adapter", row.id), {"version": version}
            )
        return AdapterWithVersion(row, chosen)

    async def rollback(self, tenant_id: str, adapter: str, *, by: Actor = SYSTEM) -> AdapterWithVersion:
        """Activates the version that was active before; a second call reverts the first. Raises
        AdapterNotFound, NoPreviousVersion, VersionNotReady.
        """
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            row = await self._locked(repository, adapter)
            if row.previous_version is None:
                raise NoPreviousVersion(row.name)
            chosen = await self._ready(repository, row, row.previous_version)
            await self._announcer.activate(session, row, chosen)
            await AuditLog.record(
                session,
                tenant_id,
                by,
                "adapter.rolled_back",
                ("adapter", row.id),
                {"version": chosen.version},
            )
        return AdapterWithVersion(row, chosen)

    async def set_disabled(
        self, tenant_id: str, adapter: str, disabled: bool, *, by: Actor = SYSTEM
    ) -> AdapterWithVersion:
        """Takes an adapter with all its versions out of service or back, within a second. Raises
        AdapterNotFound.
        """
        return await self.update(tenant_id, adapter, AdapterChanges(disabled=disabled), by=by)

    async def set_version_disabled(
        self, tenant_id: str, adapter: str, version: int, disabled: bool, *, by: Actor = SYSTEM
    ) -> tuple[Adapter, AdapterVersion]:
        """Takes one version out of service or back, within a second. The unpinned name does not fall back to
        another version: while the active one is disabled, the model is not found. Raises AdapterNotFound,
        VersionNotFound, VersionNotReady.
        """
        wanted = VersionState.DISABLED if disabled else VersionState.READY
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            row = await self._locked(repository, adapter)
            chosen = await self._version(repository, row, version)
            if chosen.state not in (VersionState.READY, VersionState.DISABLED):
                raise VersionNotReady(row.name, version, chosen.state)
            if chosen.state != wanted:
                chosen.state = wanted
                what = "disabled" if disabled else "enabled"
                self._record(
                    session, row, f"version.{what}", f"Version {version} was {what}.", version=version
                )
                served = [ref_of(chosen)] if row.active_version == version else []
                now, before = ([], served) if disabled else (served, [])
                self._announcer.serves(session, row, now=now, before=before)
                await AuditLog.record(
                    session,
                    tenant_id,
                    by,
                    f"adapter_version.{what}",
                    ("adapter", row.id),
                    {"version": version},
                )
        return row, chosen

    async def override(
        self, tenant_id: str, adapter: str, version: int, reason: str, *, by: Actor = OPERATOR
    ) -> AdapterWithVersion:
        """Lets a version pass that the calibration gate rejected, or will; for the operator, who gives a
        reason.

        A version still being processed passes when it reaches the gate. Raises AdapterNotFound,
        VersionNotFound, VersionNotReady for one that failed before it was measured, ValueError.
        """
        if not checked_text("reason", reason, MAX_DESCRIPTION).strip():
            raise ValueError("reason must not be empty")
        async with self._database.write(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            row = await self._locked(repository, adapter)
            chosen = await self._version(repository, row, version)
            failed = chosen.state == VersionState.FAILED
            # A failed version with a digest was packed and measured: only the gate can have rejected it.
            if chosen.state not in (VersionState.FAILED, *PENDING) or (failed and not chosen.digest):
                raise VersionNotReady(row.name, version, chosen.state)
            chosen.override_reason = reason.strip()
            self._record(
                session,
                row,
                "version.overridden",
                f"The operator lets version {version} pass the gate: {reason.strip()}",
                version=version,
                level="warning",
            )
            if failed:
                await make_ready(session, row, chosen, self._announcer)
            await AuditLog.record(
                session,
                tenant_id,
                by,
                "adapter_version.overridden",
                ("adapter", row.id),
                {"version": version, "reason": reason.strip()},
            )
        return AdapterWithVersion(row, chosen)

    async def register_version(
        self,
        tenant_id: str,
        name: str,
        ref: AdapterRef,
        *,
        base_digest: str,
        base: str | None = None,
        size: int | None = None,
        activate: bool = True,
        by: Actor = OPERATOR,
    ) -> RegisteredVersion:
        """Adds packed weights as the next version of the adapter `name` on `base` (default: the default
        base), which is created if needed; activates it at once if `activate`. The same weights again add
        nothing. For the operator, so there is no inspection or calibration. Raises ValueError,
        InvalidAdapter; tenants must exist.
        """
        checked_part("name", name)
        base = self._bases.default if base is None else base
        if base not in self._bases:
            raise ValueError(f"base: {base[:80]!r} is none of {', '.join(self._bases)}")
        for field_name, digest in (("ref.digest", ref.digest), ("base_digest", base_digest)):
            if _DIGEST.fullmatch(digest) is None:
                raise ValueError(f"{field_name} is not a hex SHA-256: {digest[:80]!r}")
        if ref.rank < 1:
            raise ValueError(f"ref.rank must be positive, not {ref.rank}")
        try:
            async with self._database.write(tenant_id) as session:
                repository = AdapterRepository(session, tenant_id)
                adapter = await self._ensured(session, repository, ModelName(base, name))
                row = await repository.version_with_digest(adapter.id, ref.digest)
                created = row is None
                if row is None:
                    row = AdapterVersion(
                        adapter_id=adapter.id,
                        version=await repository.latest_version(adapter.id) + 1,
                        tenant_id=tenant_id,
                        digest=ref.digest,
                        rank=ref.rank,
                        base_digest=base_digest,
                        size=size,
                        state=VersionState.READY,
                        ready_at=datetime.now(UTC),
                    )
                    repository.add_own(row)
                    self._record(
                        session, adapter, "version.ready", "Packed by the operator.", version=row.version
                    )
                if activate and row.state == VersionState.READY:
                    await self._announcer.activate(session, adapter, row)
                self._announcer.changed(session, tenant_id)
                if created:
                    await AuditLog.record(
                        session,
                        tenant_id,
                        by,
                        "adapter_version.created",
                        ("adapter", adapter.id),
                        {"name": name, "version": row.version},
                    )
        except IntegrityError as error:
            raise ValueError(f"tenant_id: there is no tenant {tenant_id!r}") from error
        pinned = ModelName(base, name, row.version)
        return RegisteredVersion(adapter.id, row.version, str(pinned), created)

    async def _ensured(
        self, session: WriteSession, repository: AdapterRepository, name: ModelName
    ) -> Adapter:
        """Returns the adapter, locked; creates it if needed."""
        await repository.advisory_lock("adapters")
        adapter = await repository.lock(name)
        if adapter is None:
            assert name.base is not None
            assert name.adapter is not None
            check_new_name(name.adapter)
            adapter = Adapter(
                id=new_id("adp"), tenant_id=repository.tenant_id, base=name.base, name=name.adapter
            )
            repository.add_own(adapter)
            await session.flush()
        return adapter

    async def _locked(self, repository: AdapterRepository, adapter: str) -> Adapter:
        row = await repository.lock(self._bases.reference(adapter))
        if row is None:
            raise AdapterNotFound(adapter)
        return row

    async def _version(self, repository: AdapterRepository, adapter: Adapter, version: int) -> AdapterVersion:
        row = await repository.lock_version(adapter.id, version) if 0 < version <= MAX_VERSION else None
        if row is None:
            raise VersionNotFound(adapter.name, version)
        return row

    async def _ready(self, repository: AdapterRepository, adapter: Adapter, version: int) -> AdapterVersion:
        row = await self._version(repository, adapter, version)
        if row.state != VersionState.READY:
            raise VersionNotReady(adapter.name, version, row.state)
        return row

    async def _set_disabled(
        self, session: WriteSession, repository: AdapterRepository, adapter: Adapter, disabled: bool
    ) -> None:
        if disabled == (adapter.disabled_at is not None):
            return
        adapter.disabled_at = datetime.now(UTC) if disabled else None
        what = "disabled" if disabled else "enabled"
        self._record(session, adapter, f"adapter.{what}", f"Adapter {adapter.name} was {what}.")
        active = adapter.active_version
        row = None if active is None else await repository.version(adapter.id, active)
        served = [ref_of(row)] if row is not None and row.state == VersionState.READY else []
        now, before = ([], served) if disabled else (served, [])
        self._announcer.serves(session, adapter, now=now, before=before)

    def _record(
        self,
        session: WriteSession,
        adapter: Adapter,
        event_type: str,
        message: str,
        *,
        version: int | None = None,
        level: events.Level = "info",
    ) -> None:
        events.record(
            session, adapter.tenant_id, adapter.id, event_type, message, version=version, level=level
        )
