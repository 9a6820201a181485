"""Queries an organization's SAML connection, the identities that it linked, and the users it may name."""

from __future__ import annotations

from db.repository import TenantRepository
from tenants.models import Identity, User
from tenants.saml.models import SamlConnection


class SamlRepository(TenantRepository):
    async def connection(self, *, lock: bool = False) -> SamlConnection | None:
        query = self.select_own(SamlConnection)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def delete_connection(self) -> None:
        await self.session.execute(self.delete_own(SamlConnection))

    async def identity(self, issuer: str, subject: str) -> Identity | None:
        query = self.select_own(Identity).where(Identity.issuer == issuer, Identity.subject == subject)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def unlink_all(self, issuer: str) -> int:
        """Unlinks every identity of an issuer; returns how many there were."""
        query = self.delete_own(Identity).where(Identity.issuer == issuer).returning(Identity.id)
        return len((await self.session.execute(query)).scalars().all())

    async def was_removed(self, email: str) -> bool:
        """Whether a user with this address was a member once and is not any more."""
        query = self.select_own(User, User.id).where(User.email == email, User.removed_at.is_not(None))
        return (await self.session.execute(query.limit(1))).first() is not None
