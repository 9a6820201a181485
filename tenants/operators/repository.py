"""Searches and counts across all tenants, for operators. The sessions' tenant scope is `EVERY_TENANT`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Text, and_, bindparam, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenants.models import OPERATOR_TENANT, ApiKey, Plan, Tenant, User

TenantStatus = Literal["active", "grace", "suspended", "disabled"]


@dataclass(frozen=True, slots=True)
class TenantFilter:
    """Selects tenants; an empty field matches all."""

    search: str = ""
    """Part of the name or of a member's email address, or an id."""
    plan: str = ""
    standing: TenantStatus | Literal[""] = ""

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [Tenant.id != OPERATOR_TENANT]
        if self.search:
            member = exists().where(
                User.tenant_id == Tenant.id,
                User.removed_at.is_(None),
                User.email.icontains(self.search, autoescape=True),
            )
            named = Tenant.name.icontains(self.search, autoescape=True)
            found.append(or_(named, Tenant.id == self.search, member))
        if self.plan:
            found.append(Plan.name == self.plan)
        if self.standing == "disabled":
            found.append(Tenant.disabled_at.is_not(None))
        elif self.standing:
            found.append(and_(Tenant.disabled_at.is_(None), Tenant.billing_state == self.standing))
        return found


@dataclass(frozen=True, slots=True)
class KeyCount:
    kind: str
    live: int
    ended: int
    """Revoked or expired."""
    last_used_at: datetime | None


_ENDED: Any = or_(ApiKey.revoked_at.is_not(None), ApiKey.expires_at <= func.now())
_KEYS = (
    select(
        ApiKey.kind,
        func.count().filter(~func.coalesce(_ENDED, False)),
        func.count().filter(_ENDED),
        func.max(ApiKey.last_used_at),
    )
    .where(ApiKey.tenant_id == bindparam("tenant_id", type_=Text))
    .group_by(ApiKey.kind)
    .order_by(ApiKey.kind.desc())
)


class CrossTenantQueries:
    """Lists and counts tenants, and counts a tenant's keys."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def page(
        self, wanted: TenantFilter, *, after: str | None, limit: int
    ) -> Sequence[Row[str, str, str, str, datetime | None]]:
        """Returns (id, name, plan's name, billing state, disabled_at) of tenants ordered by name, after the
        name `after`.
        """
        columns = (Tenant.id, Tenant.name, Plan.name, Tenant.billing_state, Tenant.disabled_at)
        query = select(*columns).join(Plan, Plan.id == Tenant.plan_id).where(*wanted.conditions())
        if after is not None:
            query = query.where(Tenant.name > after)
        return (await self.session.execute(query.order_by(Tenant.name).limit(limit))).all()

    async def count(self, wanted: TenantFilter) -> int:
        query = select(func.count()).select_from(Tenant).join(Plan, Plan.id == Tenant.plan_id)
        return int((await self.session.execute(query.where(*wanted.conditions()))).scalar_one())

    async def names(self, tenant_ids: Sequence[str]) -> dict[str, str]:
        """Returns tenants' names by id."""
        query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(tenant_ids), Tenant.id != OPERATOR_TENANT)
        return {row.id: row.name for row in await self.session.execute(query)}

    async def keys(self, tenant_id: str) -> list[KeyCount]:
        """Returns the numbers of a tenant's keys, by kind."""
        return [KeyCount(*row) for row in await self.session.execute(_KEYS, {"tenant_id": tenant_id})]
