"""Reads and writes second factors, passwords, reset tokens and external identities of one tenant's users."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from db.repository import TenantRepository
from tenants.models import Identity, PasswordReset, SecondFactor, Tenant, User
from tenants.repository import is_id


class IdentityRepository(TenantRepository):
    # Second factors ---------------------------------------------------------------------------------------

    async def factor(self, user_id: str, *, lock: bool = False) -> SecondFactor | None:
        query = self.select_own(SecondFactor).where(SecondFactor.user_id == user_id)
        if lock:
            query = query.with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def drop_factor(self, user_id: str) -> None:
        await self.session.execute(self.delete_own(SecondFactor).where(SecondFactor.user_id == user_id))

    async def with_factor(self, user_ids: Collection[str]) -> set[str]:
        """Returns which of these users have a confirmed second factor."""
        query = self.select_own(SecondFactor, SecondFactor.user_id).where(
            SecondFactor.user_id.in_(user_ids), SecondFactor.confirmed_at.is_not(None)
        )
        return set((await self.session.execute(query)).scalars())

    async def lock_tenant(self) -> Tenant | None:
        return await self.session.get(Tenant, self.tenant_id, with_for_update=True)

    # Passwords --------------------------------------------------------------------------------------------

    async def set_password(self, user_id: str, password_hash: str, now: datetime) -> None:
        """Sets a new password, which ends earlier sessions and deletes the user's reset tokens."""
        changed = self.update_own(User).where(User.id == user_id)
        await self.session.execute(changed.values(password_hash=password_hash, sessions_from=now))
        await self.session.execute(self.delete_own(PasswordReset).where(PasswordReset.user_id == user_id))

    async def lock_reset(self, digest: bytes) -> PasswordReset | None:
        query = self.select_own(PasswordReset).where(PasswordReset.digest == digest).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def drop_old_resets(self, user_id: str, now: datetime) -> None:
        old = self.delete_own(PasswordReset).where(
            PasswordReset.user_id == user_id, PasswordReset.expires_at <= now
        )
        await self.session.execute(old)

    # Identities of other providers ------------------------------------------------------------------------

    async def identities(self, user_id: str) -> Sequence[Identity]:
        query = self.select_own(Identity).where(Identity.user_id == user_id).order_by(Identity.id)
        return (await self.session.execute(query)).scalars().all()

    async def identity(self, user_id: str, identity_id: str) -> Identity | None:
        if not is_id(identity_id):
            return None
        query = self.select_own(Identity).where(Identity.user_id == user_id, Identity.id == identity_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def drop_identity(self, identity_id: str) -> None:
        await self.session.execute(self.delete_own(Identity).where(Identity.id == identity_id))
