"""Queries on tenants, users and keys.

`TenantDirectory` asks before there is a tenant to scope by (who owns this key, this email, this name?);
everything after that goes through the scoped `TenantAccounts`.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Row, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from db.repository import TenantRepository
from tenants.models import ApiKey, Plan, Tenant, User

LAST_USED_PRECISION = timedelta(minutes=1)


class TenantDirectory:
    """Finds tenants, and the tenant behind a credential."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def add(self, tenant: Tenant) -> None:
        self.session.add(tenant)

    async def tenant(self, tenant_id: str) -> Tenant | None:
        return await self.session.get(Tenant, tenant_id)

    async def tenant_by_name(self, name: str) -> Tenant | None:
        return (await self.session.execute(select(Tenant).where(Tenant.name == name))).scalar_one_or_none()

    async def tenants(self) -> list[Tenant]:
        """All of them, oldest first: for the operator."""
        return list((await self.session.execute(select(Tenant).order_by(Tenant.id))).scalars())

    async def plans(self) -> list[Plan]:
        """All of them, oldest first."""
        return list((await self.session.execute(select(Plan).order_by(Plan.created_at, Plan.id))).scalars())

    async def plan_of(self, tenant_id: str) -> Plan | None:
        query = select(Plan).join(Tenant, Tenant.plan_id == Plan.id).where(Tenant.id == tenant_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_plan(self, name: str) -> Plan | None:
        """The plan, held against other writers until the transaction ends."""
        query = select(Plan).where(Plan.name == name).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def key_by_digest(self, digest: bytes) -> Row[ApiKey, Tenant, Plan] | None:
        """The key, its tenant and that one's plan, by the HMAC of its text: one query by a unique index."""
        query = (
            select(ApiKey, Tenant, Plan)
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .join(Plan, Plan.id == Tenant.plan_id)
            .where(ApiKey.digest == digest)
        )
        return (await self.session.execute(query)).one_or_none()

    async def user_by_email(self, email: str) -> Row[User, Tenant] | None:
        query = (
            select(User, Tenant).join(Tenant, Tenant.id == User.tenant_id).where(User.email == email.lower())
        )
        return (await self.session.execute(query)).one_or_none()


class TenantAccounts(TenantRepository):
    """One tenant's users and keys."""

    async def key(self, key_id: str) -> ApiKey | None:
        query = self.select_own(ApiKey).where(ApiKey.id == key_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def keys(self) -> list[ApiKey]:
        """Oldest first, revoked ones too."""
        return list((await self.session.execute(self.select_own(ApiKey).order_by(ApiKey.id))).scalars())

    async def revoke_key(self, key_id: str) -> bytes | None:
        """Revoke it unless it is already; its digest, or None when there is no such key."""
        query = (
            self.update_own(ApiKey)
            .where(ApiKey.id == key_id)
            .values(revoked_at=func.coalesce(ApiKey.revoked_at, func.now()))
            .returning(ApiKey.digest)
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def note_key_used(self, key_id: str) -> None:
        """Set `last_used_at`, unless that was done within the minute."""
        due = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - LAST_USED_PRECISION)
        query = self.update_own(ApiKey).where(ApiKey.id == key_id, due).values(last_used_at=func.now())
        await self.session.execute(query)

    async def user(self, user_id: str) -> User | None:
        query = self.select_own(User).where(User.id == user_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def users(self) -> list[User]:
        return list((await self.session.execute(self.select_own(User).order_by(User.id))).scalars())

    async def set_password_hash(self, user_id: str, password_hash: str) -> None:
        query = self.update_own(User).where(User.id == user_id).values(password_hash=password_hash)
        await self.session.execute(query)

    async def disable(self, disabled: bool) -> bool:
        """Close or reopen the whole tenant. False when there is none."""
        query = (
            update(Tenant)
            .where(Tenant.id == self.tenant_id)
            .values(disabled_at=func.coalesce(Tenant.disabled_at, func.now()) if disabled else None)
            .returning(Tenant.id)
        )
        return (await self.session.execute(query)).scalar_one_or_none() is not None
