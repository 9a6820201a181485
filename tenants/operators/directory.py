"""Tenants as an operator finds them. Refuses to know what they use and owe: `billing.customers` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.session import EVERY_TENANT, Database
from tenants.models import Tenant
from tenants.operators.repository import EveryTenant, KeyCount, Standing, TenantFilter

__all__ = ["Found", "KeyCount", "Standing", "TenantFilter", "TenantSearch"]


@dataclass(frozen=True, slots=True)
class Found:
    """A tenant of a list."""

    tenant: Tenant
    plan: str


class TenantSearch:
    """Every method is one transaction. Raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, wanted: TenantFilter, *, after: str | None = None, limit: int = 50
    ) -> tuple[list[Found], int]:
        """Tenants by name, beyond the one of that name; and how many there are in all."""
        async with self._database.read(EVERY_TENANT) as session:
            directory = EveryTenant(session)
            rows = await directory.page(wanted, after=after, limit=limit)
            return [Found(tenant, plan) for tenant, plan in rows], await directory.count(wanted)

    async def names(self, tenant_ids: Sequence[str]) -> dict[str, str]:
        """By id."""
        async with self._database.read(EVERY_TENANT) as session:
            return await EveryTenant(session).names(tenant_ids)

    async def keys(self, tenant_id: str) -> list[KeyCount]:
        async with self._database.read(EVERY_TENANT) as session:
            return await EveryTenant(session).keys(tenant_id)
