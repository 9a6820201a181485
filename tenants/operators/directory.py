"""Tenants as an operator finds them. Refuses to know what they use and owe: `billing.customers` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.session import EVERY_TENANT, Database
from tenants.limits.kinds import Limit
from tenants.limits.repository import LimitRepository
from tenants.members.repository import MemberRepository
from tenants.models import Tenant, User
from tenants.operators.repository import EveryTenant, KeyCount, Standing, TenantFilter
from tenants.repository import TenantDirectory
from tenants.views import PlanView, plan_view

__all__ = ["Found", "KeyCount", "Organisation", "Standing", "TenantFilter", "TenantSearch"]


@dataclass(frozen=True, slots=True)
class Found:
    """A tenant of a list."""

    tenant: Tenant
    plan: str


@dataclass(frozen=True, slots=True)
class Organisation:
    """A tenant by itself: who is in it, and what it may."""

    plan: PlanView
    plans: list[str]
    """Names of all there are."""
    members: list[User]
    keys: list[KeyCount]
    limits: tuple[Limit, ...]
    """All that hold."""


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

    async def organisation(self, tenant: Tenant, *, num_members: int) -> Organisation:
        """`num_members`: so many at most, the first ones."""
        async with self._database.read(EVERY_TENANT) as session:
            plans = await TenantDirectory(session).plans()
            members = await MemberRepository(session, tenant.id).page(
                emails=(), after=None, limit=num_members, newest_first=False
            )
            keys = await EveryTenant(session).keys(tenant.id)
            limits = await LimitRepository(session, tenant.id).effective()
        (plan,) = (plan for plan in plans if plan.id == tenant.plan_id)
        return Organisation(plan_view(plan), [one.name for one in plans], [*members], keys, limits or ())
