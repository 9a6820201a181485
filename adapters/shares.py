"""Offers adapters to other organizations, takes their answers, and ends shares.

An owner offers, the other organization accepts or declines, and either ends it at any time: within a second
no new request can use the adapter, and running requests finish, as when an adapter is deleted. The adapter
stays its owner's: the other organization can use its name in requests and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from adapters.bases import Bases
from adapters.errors import AdapterNotFound, InvalidAdapter
from adapters.repository import AdapterRepository
from adapters.resolver import publish_model_change
from adapters.sharing.errors import AlreadyShared, OrganizationNotFound, ShareAnswered, ShareNotFound
from adapters.sharing.handles import handles
from adapters.sharing.models import LIVE, AdapterShare, ShareState
from adapters.sharing.repository import OwnShares, ReceivedShares, ShareDirectory
from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.models import OPERATOR_TENANT
from tenants.repository import TenantDirectory, is_id
from tenants.share_terms import MAX_SURCHARGE

DEFAULT_PLATFORM_PERCENT = 20


@dataclass(frozen=True, slots=True)
class Offer:
    """What an owner offers. Surcharges are micro-USD per million tokens."""

    recipient_id: str
    input_surcharge: int
    output_surcharge: int
    owner_percent: int | None = None
    """None: all that the operator leaves to owners."""


@dataclass(frozen=True, slots=True)
class ShareView:
    """A share as either side sees it."""

    row: AdapterShare
    owner: str
    """The names of both organizations."""
    recipient: str
    serving_version: int | None = None
    """The version that the shared name serves; None while it serves none."""


class SharingService:
    """Shares of all tenants. An adapter is given as `Bases.reference` says."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        bases: Bases,
        *,
        platform_percent: int = DEFAULT_PLATFORM_PERCENT,
    ) -> None:
        """`platform_percent`: the least that the platform keeps of a surcharge."""
        self._database = database
        self._redis = redis_client
        self._bases = bases
        self.most_percent = 100 - platform_percent
        """The largest part of a surcharge that an owner can ask for, and the default."""

    # The owner ----------------------------------------------------------------------------------------------

    async def offer(self, owner_id: str, adapter: str, offer: Offer, *, by: Actor = SYSTEM) -> ShareView:
        """Offers an adapter to another organization.

        Raises AdapterNotFound, OrganizationNotFound, AlreadyShared, InvalidAdapter.
        """
        percent = self._checked(owner_id, offer)
        async with self._database.read(EVERY_TENANT) as session:
            names = await TenantDirectory(session).names([owner_id, offer.recipient_id])
        if offer.recipient_id not in names or offer.recipient_id == OPERATOR_TENANT:
            raise OrganizationNotFound(offer.recipient_id)
        try:
            async with self._database.write(owner_id) as session:
                repository = AdapterRepository(session, owner_id)
                row = await repository.lock(self._bases.reference(adapter))
                if row is None:
                    raise AdapterNotFound(adapter)
                own = OwnShares(session, owner_id)
                share = AdapterShare(
                    id=new_id("shr"),
                    tenant_id=owner_id,
                    adapter_id=row.id,
                    recipient_id=offer.recipient_id,
                    base=row.base,
                    handle=await _handle(own, names[owner_id]),
                    name=row.name,
                    state=ShareState.OFFERED,
                    input_surcharge=offer.input_surcharge,
                    output_surcharge=offer.output_surcharge,
                    owner_percent=percent,
                    created_by=by.id,
                    created_at=datetime.now(UTC),
                )
                own.add_own(share)
                await AuditLog.record(
                    session, owner_id, by, "adapter_share.offered", ("adapter_share", share.id), _told(share)
                )
        except IntegrityError as error:
            raise AlreadyShared(adapter, offer.recipient_id) from error
        return ShareView(share, names[owner_id], names[offer.recipient_id])

    async def shares(
        self,
        owner_id: str,
        adapter: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[ShareView]:
        """Returns shares of an adapter, in any state. Raises AdapterNotFound, UnknownCursor."""
        async with self._database.read(owner_id) as session:
            adapter_id = await self._adapter_id(AdapterRepository(session, owner_id), adapter)
            rows = await OwnShares(session, owner_id).page(
                adapter_id, after=after, limit=limit, newest_first=newest_first
            )
        return await self._views(rows)

    async def share(self, owner_id: str, adapter: str, share_id: str) -> ShareView:
        """Returns a share of an adapter. Raises AdapterNotFound, ShareNotFound."""
        async with self._database.read(owner_id) as session:
            adapter_id = await self._adapter_id(AdapterRepository(session, owner_id), adapter)
            row = await OwnShares(session, owner_id).find(adapter_id, _id(share_id))
        if row is None:
            raise ShareNotFound(share_id)
        return (await self._views([row]))[0]

    async def end(self, owner_id: str, adapter: str, share_id: str, *, by: Actor = SYSTEM) -> ShareView:
        """Takes an offer back, or ends a share. Repeating it changes nothing. Raises AdapterNotFound,
        ShareNotFound.
        """
        async with self._database.write(owner_id) as session:
            adapter_id = await self._adapter_id(AdapterRepository(session, owner_id), adapter)
            row = await OwnShares(session, owner_id).lock(adapter_id, _id(share_id))
            if row is None:
                raise ShareNotFound(share_id)
            await self._finish(session, row, owner_id, ShareState.ENDED, by)
        return (await self._views([row]))[0]

    # The other organization ---------------------------------------------------------------------------------

    async def received(
        self, recipient_id: str, *, after: str | None = None, limit: int = 20, newest_first: bool = True
    ) -> list[ShareView]:
        """Returns what other organizations offer and share, in any state. Raises UnknownCursor."""
        async with self._database.read(recipient_id) as session:
            rows = await ReceivedShares(session, recipient_id).page(
                after=after, limit=limit, newest_first=newest_first
            )
        return await self._views(rows)

    async def received_share(self, recipient_id: str, share_id: str) -> ShareView:
        """Returns an offer or share. Raises ShareNotFound."""
        async with self._database.read(recipient_id) as session:
            row = await ReceivedShares(session, recipient_id).find(_id(share_id))
        if row is None:
            raise ShareNotFound(share_id)
        return (await self._views([row]))[0]

    async def accept(self, recipient_id: str, share_id: str, *, by: Actor = SYSTEM) -> ShareView:
        """Accepts an offer: from now on its model can be used, at its surcharge. Again changes nothing.
        Raises ShareNotFound, ShareAnswered for one that was declined or ended.
        """
        async with self._database.write(recipient_id) as session:
            row = await self._received(session, recipient_id, share_id)
            if row.state not in LIVE:
                raise ShareAnswered(share_id, row.state)
            if row.state == ShareState.OFFERED:
                row.state, row.accepted_at = ShareState.ACTIVE, datetime.now(UTC)
                self._announce(session, recipient_id)
                await self._audit(session, recipient_id, by, "accepted", row)
        return (await self._views([row]))[0]

    async def decline(self, recipient_id: str, share_id: str, *, by: Actor = SYSTEM) -> ShareView:
        """Declines an offer. Raises ShareNotFound, ShareAnswered for one that was accepted or ended."""
        async with self._database.write(recipient_id) as session:
            row = await self._received(session, recipient_id, share_id)
            if row.state not in (ShareState.OFFERED, ShareState.DECLINED):
                raise ShareAnswered(share_id, row.state)
            await self._finish(session, row, recipient_id, ShareState.DECLINED, by)
        return (await self._views([row]))[0]

    async def leave(self, recipient_id: str, share_id: str, *, by: Actor = SYSTEM) -> ShareView:
        """Ends a share from the side that uses it, or declines an offer. Repeating it changes nothing. Raises
        ShareNotFound.
        """
        async with self._database.write(recipient_id) as session:
            row = await self._received(session, recipient_id, share_id)
            state = ShareState.DECLINED if row.state == ShareState.OFFERED else ShareState.ENDED
            await self._finish(session, row, recipient_id, state, by)
        return (await self._views([row]))[0]

    # --------------------------------------------------------------------------------------------------------

    async def _finish(
        self, session: WriteSession, row: AdapterShare, ended_by: str, state: ShareState, by: Actor
    ) -> None:
        if row.state not in LIVE:
            return
        row.state, row.ended_at, row.ended_by = state, datetime.now(UTC), ended_by
        self._announce(session, row.recipient_id)
        await self._audit(session, ended_by, by, state.value, row)

    def _announce(self, session: WriteSession, recipient_id: str) -> None:
        """Announces, once `session` is committed, that the organization's models changed."""
        session.after_commit(lambda: publish_model_change(self._redis, recipient_id))

    async def _audit(
        self, session: WriteSession, tenant_id: str, by: Actor, what: str, row: AdapterShare
    ) -> None:
        target = ("adapter_share", row.id)
        await AuditLog.record(session, tenant_id, by, f"adapter_share.{what}", target, {"model": row.model})

    async def _received(self, session: WriteSession, recipient_id: str, share_id: str) -> AdapterShare:
        row = await ReceivedShares(session, recipient_id).lock(_id(share_id))
        if row is None:
            raise ShareNotFound(share_id)
        return row

    async def _adapter_id(self, repository: AdapterRepository, adapter: str) -> str:
        found = await repository.find(self._bases, self._bases.reference(adapter))
        if found is None:
            raise AdapterNotFound(adapter)
        return found.id

    async def _views(self, rows: Sequence[AdapterShare]) -> list[ShareView]:
        if not rows:
            return []
        ids = {tenant_id for row in rows for tenant_id in (row.tenant_id, row.recipient_id)}
        async with self._database.read(EVERY_TENANT) as session:
            names = await TenantDirectory(session).names(ids)
            active = [row for row in rows if row.state == ShareState.ACTIVE]
            serving = await ShareDirectory(session).serving(active)
        return [
            ShareView(
                row,
                names.get(row.tenant_id, row.tenant_id),
                names.get(row.recipient_id, row.recipient_id),
                serving[row.id].version if row.id in serving else None,
            )
            for row in rows
        ]

    def _checked(self, owner_id: str, offer: Offer) -> int:
        """Returns the owner's part in percent. Raises InvalidAdapter."""
        if offer.recipient_id == owner_id:
            raise InvalidAdapter("organization_id", "name another organization, not your own")
        for name in ("input_surcharge", "output_surcharge"):
            amount = getattr(offer, name)
            if not 0 <= amount <= MAX_SURCHARGE:
                raise InvalidAdapter(name, f"must be from 0 to {MAX_SURCHARGE}, not {amount}")
        percent = self.most_percent if offer.owner_percent is None else offer.owner_percent
        if not 0 <= percent <= self.most_percent:
            raise InvalidAdapter("owner_percent", f"must be from 0 to {self.most_percent}, not {percent}")
        return percent


async def _handle(own: OwnShares, name: str) -> str:
    """Returns the owner's handle; makes one at its first offer."""
    await own.advisory_lock("sharing handle")
    known = await own.handle()
    if known is not None:
        return known
    for handle in handles(name):
        if await own.take_handle(handle):
            return handle
    raise AssertionError("handles never end")


def _id(share_id: str) -> str:
    """Returns the id if it can be one. Raises ShareNotFound."""
    if not is_id(share_id):
        raise ShareNotFound(share_id)
    return share_id


def _told(share: AdapterShare) -> dict[str, str | int]:
    return {
        "adapter_id": share.adapter_id,
        "organization_id": share.recipient_id,
        "model": share.model,
        "input_surcharge": share.input_surcharge,
        "output_surcharge": share.output_surcharge,
        "owner_percent": share.owner_percent,
    }
