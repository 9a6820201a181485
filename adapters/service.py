"""What can be done to a tenant's adapters. Every method is one transaction, and tells the caches after its
commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from adapters.errors import ModelNotFound, ModelNotReady, VersionNotFound
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.names import ModelName, checked_part
from adapters.repository import AdapterRepository
from adapters.resolver import ModelCard, ModelResolver, ResolvedModel, publish_model_change
from db.base import new_id
from db.session import Database, WriteSession
from engine.protocol import AdapterRef

__all__ = ["AdapterService", "ModelCard", "ModelResolver", "Registered", "ResolvedModel"]

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Registered:
    """A version that now exists."""

    adapter_id: str
    version: int
    name: str
    """`base:adapter@version`."""
    created: bool
    """False when the adapter had these very weights already: nothing was added."""


class AdapterService:
    """Tenants' adapters on one base model."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis, base: str) -> None:
        self._database = database
        self._redis = redis_client
        self.base = checked_part("base", base)

    async def register_version(
        self,
        tenant_id: str,
        name: str,
        ref: AdapterRef,
        *,
        base_digest: str,
        size: int | None = None,
        activate: bool = True,
    ) -> Registered:
        """Add packed weights as the next version of the adapter `name`, made when it is not there; serve them
        at once when `activate`. The same weights again change no version. Raises ValueError; tenants must
        exist."""
        checked_part("name", name)
        for field_name, digest in (("ref.digest", ref.digest), ("base_digest", base_digest)):
            if _DIGEST.fullmatch(digest) is None:
                raise ValueError(f"{field_name} is not a hex SHA-256: {digest[:80]!r}")
        if ref.rank < 1:
            raise ValueError(f"ref.rank must be positive, not {ref.rank}")
        await self._ensure_adapter(tenant_id, name)
        async with self._database.write() as session:
            repository = AdapterRepository(session, tenant_id)
            adapter = await repository.lock(self.base, name)
            assert adapter is not None, "adapters are never deleted"
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
                )
                repository.add_own(row)
            if activate:
                adapter.active_version = row.version
            self._announce(session, tenant_id)
        pinned = ModelName(self.base, name, row.version)
        return Registered(adapter.id, row.version, str(pinned), created)

    async def activate(self, tenant_id: str, name: str, version: int) -> None:
        """Serve `version` under the unpinned name. Raises ModelNotFound, VersionNotFound, ModelNotReady."""
        async with self._database.write() as session:
            repository = AdapterRepository(session, tenant_id)
            adapter = await self._locked(repository, name)
            row = await repository.version(adapter.id, version)
            if row is None:
                raise VersionNotFound(name, version)
            if row.state != VersionState.READY:
                raise ModelNotReady(str(ModelName(self.base, name, version)), row.state)
            adapter.active_version = version
            self._announce(session, tenant_id)

    async def set_disabled(self, tenant_id: str, name: str, disabled: bool) -> None:
        """Take an adapter, all its versions, out of service or back, within a second. Raises
        ModelNotFound.
        """
        async with self._database.write() as session:
            repository = AdapterRepository(session, tenant_id)
            adapter = await self._locked(repository, name)
            await repository.set_disabled(adapter.id, disabled)
            self._announce(session, tenant_id)

    async def versions(self, tenant_id: str, name: str) -> list[AdapterVersion]:
        """Oldest first, whatever their state. Raises ModelNotFound."""
        async with self._database.read() as session:
            repository = AdapterRepository(session, tenant_id)
            adapter = await repository.find(self.base, ModelName(self.base, checked_part("name", name)))
            if adapter is None:
                raise ModelNotFound(str(ModelName(self.base, name)))
            return await repository.versions(adapter.id)

    async def _ensure_adapter(self, tenant_id: str, name: str) -> None:
        """Make the adapter unless it is there. Of two that try at once, one makes it and both find it."""
        async with self._database.read() as session:
            if (
                await AdapterRepository(session, tenant_id).find(self.base, ModelName(self.base, name))
                is not None
            ):
                return
        adapter = Adapter(id=new_id("adp"), tenant_id=tenant_id, base=self.base, name=name)
        try:
            async with self._database.write() as session:
                AdapterRepository(session, tenant_id).add_own(adapter)
        except IntegrityError as error:
            async with self._database.read() as session:
                if (
                    await AdapterRepository(session, tenant_id).find(self.base, ModelName(self.base, name))
                    is None
                ):
                    raise ValueError(f"tenant_id: there is no tenant {tenant_id!r}") from error

    async def _locked(self, repository: AdapterRepository, name: str) -> Adapter:
        adapter = await repository.lock(self.base, checked_part("name", name))
        if adapter is None:
            raise ModelNotFound(str(ModelName(self.base, name)))
        return adapter

    def _announce(self, session: WriteSession, tenant_id: str) -> None:
        session.after_commit(lambda: publish_model_change(self._redis, tenant_id))
