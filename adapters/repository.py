"""Queries on one tenant's adapters."""

from __future__ import annotations

from sqlalchemy import Row, func

from adapters.models import Adapter, AdapterVersion
from adapters.names import ModelName
from db.repository import TenantRepository


class AdapterRepository(TenantRepository):
    async def find(self, base: str, name: ModelName) -> Adapter | None:
        """The adapter that `name` names, on `base`: by its own id or by its name. Disabled ones too."""
        query = self.select_own(Adapter).where(Adapter.base == base)
        query = query.where(
            Adapter.id == name.adapter_id if name.adapter_id else Adapter.name == name.adapter
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def find_with_version(
        self, base: str, name: ModelName
    ) -> Row[Adapter, AdapterVersion | None] | None:
        """The adapter and the version `name` asks for: the one it pins, else the active one, else none. One
        query.
        """
        wanted = Adapter.active_version if name.version is None else name.version
        query = (
            self.select_own(Adapter, Adapter, AdapterVersion)
            .outerjoin(
                AdapterVersion, (AdapterVersion.adapter_id == Adapter.id) & (AdapterVersion.version == wanted)
            )
            .where(Adapter.base == base)
            .where(Adapter.id == name.adapter_id if name.adapter_id else Adapter.name == name.adapter)
        )
        return (await self.session.execute(query)).one_or_none()

    async def lock(self, base: str, name: str) -> Adapter | None:
        """The adapter, held against other writers until the transaction ends."""
        query = self.select_own(Adapter).where(Adapter.base == base, Adapter.name == name).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def all_active(self, base: str) -> list[Row[Adapter, AdapterVersion]]:
        """Adapters that are enabled and have an active version, with it, by name."""
        query = (
            self.select_own(Adapter, Adapter, AdapterVersion)
            .join(
                AdapterVersion,
                (AdapterVersion.adapter_id == Adapter.id)
                & (AdapterVersion.version == Adapter.active_version),
            )
            .where(Adapter.base == base, Adapter.disabled_at.is_(None))
            .order_by(Adapter.name)
        )
        return list((await self.session.execute(query)).all())

    async def versions(self, adapter_id: str) -> list[AdapterVersion]:
        """Oldest first."""
        query = self.select_own(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id)
        return list((await self.session.execute(query.order_by(AdapterVersion.version))).scalars())

    async def version(self, adapter_id: str, version: int) -> AdapterVersion | None:
        query = self.select_own(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.version == version
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def latest_version(self, adapter_id: str) -> int:
        """Highest version number so far, 0 when there is none."""
        query = self.select_own(AdapterVersion, func.coalesce(func.max(AdapterVersion.version), 0))
        return (await self.session.execute(query.where(AdapterVersion.adapter_id == adapter_id))).scalar_one()

    async def version_with_digest(self, adapter_id: str, digest: str) -> AdapterVersion | None:
        query = self.select_own(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.digest == digest
        )
        return (
            await self.session.execute(query.order_by(AdapterVersion.version).limit(1))
        ).scalar_one_or_none()

    async def set_disabled(self, adapter_id: str, disabled: bool) -> None:
        query = self.update_own(Adapter).where(Adapter.id == adapter_id)
        await self.session.execute(query.values(disabled_at=func.now() if disabled else None))
