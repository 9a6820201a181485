"""What tenants may do: plans, and which tenant is on which.

Owns the names of limits and which values are possible. Enforces none: the owner of what is limited does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import EVERY_TENANT, Database
from tenants.errors import NameTaken, PlanNotFound, TenantNotFound
from tenants.models import STANDARD_PLAN, Plan
from tenants.repository import TenantDirectory
from tenants.resolver import publish_key_change
from tenants.terms import merged
from tenants.views import STANDARD, PlanView, plan_view

__all__ = ["STANDARD", "STANDARD_PLAN", "PlanChanges", "PlanService", "PlanView"]

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_MOST = {"max_adapters": 100_000, "max_file_bytes": 1 << 40, "pinned_adapters": 4096}


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """New limits of a plan; None leaves one as it is."""

    max_adapters: int | None = None
    max_file_bytes: int | None = None
    pinned_adapters: int | None = None
    gate: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Thresholds of calibration to set, by name."""
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Terms to set, by class of service and name: see `tenants.terms.Terms`."""

    def check(self) -> None:
        """Raises ValueError naming the limit."""
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise ValueError(f"{name} must be from 0 to {most}, not {value}")
        for name, threshold in self.gate.items():
            if isinstance(threshold, bool) or not isinstance(threshold, int | float):
                raise ValueError(f"gate: {name} must be a number, not {threshold!r}")

    def values(self, gate_before: Mapping[str, Any], terms_before: Mapping[str, Any]) -> dict[str, Any]:
        """Columns to set. Raises ValueError naming the term."""
        changed = {name: getattr(self, name) for name in _MOST if getattr(self, name) is not None}
        if self.gate:
            changed["gate"] = {**gate_before, **self.gate}
        if self.terms:
            changed["terms"] = merged(terms_before, self.terms)
        return changed


class PlanService:
    """For the operator, and for whoever works for a tenant that is not asking just now."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(self) -> list[PlanView]:
        """Oldest first."""
        async with self._database.read() as session:
            return [plan_view(plan) for plan in await TenantDirectory(session).plans()]

    async def find(self, name: str) -> PlanView:
        """Raises PlanNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan(name)
        if plan is None:
            raise PlanNotFound(name)
        return plan_view(plan)

    async def of_tenant(self, tenant_id: str) -> PlanView:
        """Raises TenantNotFound."""
        async with self._database.read() as session:
            plan = await TenantDirectory(session).plan_of(tenant_id)
        if plan is None:
            raise TenantNotFound(tenant_id)
        return plan_view(plan)

    async def create(self, name: str, changes: PlanChanges | None = None) -> PlanView:
        """A plan like the standard one but for the changes. Raises NameTaken, ValueError."""
        changes = changes or PlanChanges()
        changes.check()
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"name must be 1 to 64 of a-z, 0-9, '.', '_' and '-', not {name[:80]!r}")
        plan = Plan(id=new_id("plan"), name=name, **changes.values({}, {}))
        try:
            async with self._database.write() as session:
                session.add(plan)
                await session.flush()
                await session.refresh(plan)
        except IntegrityError as error:
            raise NameTaken("plan name", name) from error
        return plan_view(plan)

    async def set(self, name: str, changes: PlanChanges) -> PlanView:
        """Change a plan for all who are on it, within a second. Raises PlanNotFound, ValueError."""
        changes.check()
        async with self._database.write() as session:
            plan = await TenantDirectory(session).lock_plan(name)
            if plan is None:
                raise PlanNotFound(name)
            for column, value in changes.values(plan.gate, plan.terms).items():
                setattr(plan, column, value)
            session.after_commit(lambda: publish_key_change(self._redis, None))
        return plan_view(plan)

    async def set_tenant_plan(self, tenant_id: str, name: str) -> PlanView:
        """Put a tenant on a plan, within a second. Raises TenantNotFound, PlanNotFound."""
        async with self._database.write() as session:
            directory = TenantDirectory(session)
            plan = await directory.lock_plan(name)
            if plan is None:
                raise PlanNotFound(name)
            tenant = await directory.tenant(tenant_id)
            if tenant is None:
                raise TenantNotFound(tenant_id)
            tenant.plan_id = plan.id
            session.after_commit(lambda: publish_key_change(self._redis, None))
        return plan_view(plan)
