"""Queries workload identity providers and federation rules."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.models import Tenant
from tenants.repository import is_id
from tenants.workload_identity.models import FederationRule, WorkloadIdentityProvider

Provider = WorkloadIdentityProvider


class ProviderDirectory:
    """Finds the tenant of a provider. Not scoped to a tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def enabled(self, provider_id: str) -> Provider | None:
        """Returns the provider if it and its tenant are not disabled."""
        if not is_id(provider_id):
            return None
        query = (
            select(Provider)
            .join(Tenant, Tenant.id == Provider.tenant_id)
            .where(Provider.id == provider_id, Provider.is_enabled, Tenant.disabled_at.is_(None))
        )
        return (await self._session.execute(query)).scalar_one_or_none()


class WorkloadIdentityRepository(TenantRepository):
    async def provider(self, provider_id: str, *, lock: bool = False) -> Provider | None:
        if not is_id(provider_id):
            return None
        query = self.select_own(Provider).where(Provider.id == provider_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def provider_page(self, *, after: str | None, limit: int, newest_first: bool) -> Sequence[Provider]:
        page = await fetch_page(
            self.session,
            self.select_own(Provider),
            Provider.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "workload_identity_provider.deleted"),
        )
        return page.scalars().all()

    async def num_providers(self) -> int:
        query = self.select_own(Provider, func.count())
        return int((await self.session.execute(query)).scalar_one())

    async def delete_provider(self, provider_id: str) -> None:
        await self.session.execute(self.delete_own(Provider).where(Provider.id == provider_id))

    async def rule(self, provider_id: str, rule_id: str, *, lock: bool = False) -> FederationRule | None:
        if not (is_id(provider_id) and is_id(rule_id)):
            return None
        query = self.select_own(FederationRule).where(
            FederationRule.provider_id == provider_id, FederationRule.id == rule_id
        )
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def rule_page(
        self,
        provider_id: str,
        *,
        service_account_id: str | None,
        after: str | None,
        limit: int,
        newest_first: bool,
    ) -> Sequence[FederationRule]:
        listed = self.select_own(FederationRule).where(FederationRule.provider_id == provider_id)
        filters = (
            [] if service_account_id is None else [FederationRule.service_account_id == service_account_id]
        )
        page = await fetch_page(
            self.session,
            listed,
            FederationRule.id,
            *filters,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "federation_rule.deleted"),
        )
        return page.scalars().all()

    async def rules(self, provider_id: str) -> Sequence[FederationRule]:
        """Returns all rules of a provider, oldest first."""
        query = self.select_own(FederationRule).where(FederationRule.provider_id == provider_id)
        return (await self.session.execute(query.order_by(FederationRule.id))).scalars().all()

    async def delete_rule(self, rule_id: str) -> None:
        await self.session.execute(self.delete_own(FederationRule).where(FederationRule.id == rule_id))
