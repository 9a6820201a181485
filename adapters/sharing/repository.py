"""Queries shares, from the side of the owner and from that of the organization that uses the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.bases import Bases
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.sharing.models import LIVE, AdapterShare, ShareState, SharingHandle
from db.cursors import fetch_page
from db.repository import TenantRepository


class OwnShares(TenantRepository):
    """Shares of the tenant's own adapters."""

    async def page(
        self, adapter_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[AdapterShare]:
        """Returns shares of one adapter, in any state. Raises UnknownCursor."""
        listed = self.select_own(AdapterShare).where(AdapterShare.adapter_id == adapter_id)
        page = await fetch_page(
            self.session, listed, AdapterShare.id, after=after, limit=limit, newest_first=newest_first
        )
        return page.scalars().all()

    async def find(self, adapter_id: str, share_id: str) -> AdapterShare | None:
        return (await self.session.execute(self._one(adapter_id, share_id))).scalar_one_or_none()

    async def lock(self, adapter_id: str, share_id: str) -> AdapterShare | None:
        query = self._one(adapter_id, share_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def end_all(self, adapter_id: str, at: datetime) -> Sequence[AdapterShare]:
        """Ends the adapter's live shares; returns them as they are now."""
        ending = (
            self.update_own(AdapterShare)
            .where(AdapterShare.adapter_id == adapter_id, AdapterShare.state.in_(LIVE))
            .values(state=ShareState.ENDED, ended_at=at, ended_by=self.tenant_id)
            .returning(AdapterShare)
        )
        return (await self.session.execute(ending)).scalars().all()

    async def handle(self) -> str | None:
        query = self.select_own(SharingHandle, SharingHandle.handle)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def take_handle(self, handle: str) -> bool:
        """Makes it the tenant's handle; returns False if another tenant has it."""
        row = insert(SharingHandle).values(tenant_id=self.tenant_id, handle=handle)
        taken = row.on_conflict_do_nothing(index_elements=[SharingHandle.handle])
        return (
            await self.session.execute(taken.returning(SharingHandle.handle))
        ).scalar_one_or_none() is not None

    def _one(self, adapter_id: str, share_id: str) -> Select[AdapterShare]:
        return self.select_own(AdapterShare).where(
            AdapterShare.adapter_id == adapter_id, AdapterShare.id == share_id
        )


class ReceivedShares:
    """Shares that other organizations offer to one, with the state of the adapter that it may see."""

    def __init__(self, session: AsyncSession, recipient_id: str) -> None:
        if not recipient_id:
            raise ValueError("recipient_id is empty")
        self.session = session
        self.recipient_id = recipient_id

    async def page(self, *, after: str | None, limit: int, newest_first: bool) -> Sequence[AdapterShare]:
        """Returns shares in any state. Raises UnknownCursor."""
        page = await fetch_page(
            self.session, self._own(), AdapterShare.id, after=after, limit=limit, newest_first=newest_first
        )
        return page.scalars().all()

    async def find(self, share_id: str) -> AdapterShare | None:
        query = self._own().where(AdapterShare.id == share_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock(self, share_id: str) -> AdapterShare | None:
        query = self._own().where(AdapterShare.id == share_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def active(self, bases: Bases) -> Sequence[AdapterShare]:
        """Returns the active shares on these bases, by name."""
        query = self._own().where(AdapterShare.state == ShareState.ACTIVE, AdapterShare.base.in_(bases.names))
        ordered = query.order_by(AdapterShare.base, AdapterShare.handle, AdapterShare.name)
        return (await self.session.execute(ordered)).scalars().all()

    async def named(self, base: str, handle: str, name: str) -> AdapterShare | None:
        """Returns the active share with this name."""
        query = self._own().where(
            AdapterShare.state == ShareState.ACTIVE,
            AdapterShare.base == base,
            AdapterShare.handle == handle,
            AdapterShare.name == name,
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    def _own(self) -> Select[AdapterShare]:
        return select(AdapterShare).where(AdapterShare.recipient_id == self.recipient_id)


class ShareDirectory:
    """Finds what shared adapters serve. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def serving(self, shares: Sequence[AdapterShare]) -> dict[str, AdapterVersion]:
        """Returns by share the ready, active version of its adapter; shares without one are left out."""
        if not shares:
            return {}
        query = (
            select(AdapterShare.id, AdapterVersion)
            .join(Adapter, (Adapter.id == AdapterShare.adapter_id) & Adapter.deleted_at.is_(None))
            .join(
                AdapterVersion,
                (AdapterVersion.adapter_id == Adapter.id)
                & (AdapterVersion.version == Adapter.active_version),
            )
            .where(AdapterShare.id.in_([share.id for share in shares]), Adapter.disabled_at.is_(None))
            .where(AdapterVersion.state == VersionState.READY)
        )
        return dict((await self.session.execute(query)).tuples().all())
