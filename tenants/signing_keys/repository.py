"""Queries the public keys of one organization."""

from __future__ import annotations

from collections.abc import Sequence

from db.repository import TenantRepository
from tenants.signing_keys.models import TenantSigningKey


class SigningKeyRepository(TenantRepository):
    async def list(self) -> Sequence[TenantSigningKey]:
        """Returns the keys that are not removed, newest first."""
        query = self.select_own(TenantSigningKey).where(TenantSigningKey.revoked_at.is_(None))
        return (await self.session.execute(query.order_by(TenantSigningKey.id.desc()))).scalars().all()

    async def lock(self, key_id: str) -> TenantSigningKey | None:
        query = self.select_own(TenantSigningKey).where(
            TenantSigningKey.id == key_id, TenantSigningKey.revoked_at.is_(None)
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()
