"""Creates and changes plans, and assigns tenants to them.

Validates the values of a plan's limits and fees; the services that own the limited resources enforce them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog
from tenants.errors import NameTaken, PlanChanged, PlanNotFound, TenantNotFound
from tenants.limits.kinds import Metric, check_amount
from tenants.models import STANDARD_PLAN, Plan
from tenants.repository import KeyRepository, TenantDirectory
from tenants.resolver import publish_key_change, publish_key_changes
from tenants.tier_terms import merged
from tenants.views import STANDARD, PlanView, plan_view

__all__ = [
    "MOST",
    "SETTABLE",
    "STANDARD",
    "STANDARD_PLAN",
    "PlanChanges",
    "PlanService",
    "PlanView",
    "revision",
]

_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_FEES = ("monthly_fee", "included_usage")
"""In micro-USD."""
MOST = {
    "max_adapters": 100_000,
    "max_file_bytes": 1 << 40,
    "pinned_adapters": 4096,
    "batch_price_percent": 10_000,
    "response_days": 3650,
} | dict.fromkeys(_FEES, 10**12)
"""Largest value of each numeric column of a plan; the smallest is 0."""
SETTABLE = tuple(metric for metric in Metric if metric not in (Metric.ADAPTERS, Metric.PREPAID_BALANCE))
"""Metrics that a plan's `limits` can have. The number of adapters is a column of its own."""


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """Changes to a plan; None leaves a value unchanged."""

    max_adapters: int | None = None
    max_file_bytes: int | None = None
    pinned_adapters: int | None = None
    gate: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Calibration thresholds to set, by name."""
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """Terms to set, by service tier and name: see `tenants.tier_terms.Terms`."""
    limits: Mapping[str, int | None] = field(default_factory=lambda: MappingProxyType({}))
    """Limits to set, by metric; None removes one."""
    monthly_fee: int | None = None
    included_usage: int | None = None
    batch_price_percent: int | None = None
    response_days: int | None = None

    def check(self) -> None:
        """Raises ValueError naming the limit."""
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise ValueError(f"{name} must be from 0 to {most}, not {value}")
        for name, threshold in self.gate.items():
            if isinstance(threshold, bool) or not isinstance(threshold, int | float):
                raise ValueError(f"gate: {name} must be a number, not {threshold!r}")
        for name, amount in self.limits.items():
            if name not in SETTABLE:
                raise ValueError(f"limits: {name[:60]!r} is not a metric that a plan can limit")
            if amount is not None:
                check_amount(Metric(name), amount)

    def values(self, before: Plan | None) -> dict[str, Any]:
        """Returns the columns to set. Raises ValueError naming the term."""
        gate_before, terms_before, limits_before = (
            (before.gate, before.terms, before.limits) if before is not None else ({}, {}, {})
        )
        changed = {name: getattr(self, name) for name in MOST if getattr(self, name) is not None}
        if self.gate:
            changed["gate"] = {**gate_before, **self.gate}
        if self.terms:
            changed["terms"] = merged(terms_before, self.terms)
        if self.limits:
            after = {**limits_before, **self.limits}
            changed["limits"] = {name: amount for name, amount in after.items() if amount is not None}
        return changed


class PlanService:
    """Plans, for the operator and for background work on behalf of a tenant."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(self) -> list[PlanView]:
        """Returns all plans, oldest first."""
        async with self._database.read(EVERY_TENANT) as session:
            return [plan_view(plan) for plan in await TenantDirectory(session).plans()]

    async def find(self, name: str) -> PlanView:
        """Returns the plan with this name. Raises PlanNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan(name)
        if plan is None:
            raise PlanNotFound(name)
        return plan_view(plan)

    async def find_by_id(self, plan_id: str) -> PlanView:
        """Returns the plan with this id. Raises PlanNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan_by_id(plan_id)
        if plan is None:
            raise PlanNotFound(plan_id)
        return plan_view(plan)

    async def num_tenants(self) -> Mapping[str, int]:
        """Returns the number of tenants by plan id; plans without tenants are left out."""
        async with self._database.read(EVERY_TENANT) as session:
            return await TenantDirectory(session).tenants_by_plan()

    async def of_tenant(self, tenant_id: str) -> PlanView:
        """Returns a tenant's plan. Raises TenantNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).plan_of(tenant_id)
        if plan is None:
            raise TenantNotFound(tenant_id)
        return plan_view(plan)

    async def create(
        self, name: str, changes: PlanChanges | None = None, actor: Actor = OPERATOR
    ) -> PlanView:
        """Creates a plan with the standard values and these changes. Raises NameTaken, ValueError."""
        changes = changes or PlanChanges()
        changes.check()
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"name must be 1 to 64 of a-z, 0-9, '.', '_' and '-', not {name[:80]!r}")
        values = changes.values(None)
        plan = Plan(id=new_id("plan"), name=name, **values)
        try:
            async with self._database.write(EVERY_TENANT) as session:
                session.add(plan)
                await session.flush()
                await session.refresh(plan)
                await _record(session, actor, "plan.created", plan.id, {"name": name} | values)
        except IntegrityError as error:
            raise NameTaken("plan name", name) from error
        return plan_view(plan)

    async def set(
        self, name: str, changes: PlanChanges, actor: Actor = OPERATOR, *, seen: str | None = None
    ) -> PlanView:
        """Changes a plan for all its tenants, within a second. `seen`: the `revision` that the caller read.
        The table `plan_terms` keeps earlier terms, by which past months are reported.

        Raises PlanNotFound, PlanChanged if the plan's revision is not `seen`, ValueError.
        """
        changes.check()
        async with self._database.write(EVERY_TENANT) as session:
            plan = await TenantDirectory(session).lock_plan(name)
            if plan is None:
                raise PlanNotFound(name)
            if seen is not None and revision(plan_view(plan)) != seen:
                raise PlanChanged(name)
            values = changes.values(plan)
            for column, value in values.items():
                setattr(plan, column, value)
            await _record(session, actor, "plan.updated", plan.id, {"name": name} | values)
            session.after_commit(lambda: publish_key_change(self._redis, None))
        return plan_view(plan)

    async def set_tenant_plan(self, tenant_id: str, name: str, actor: Actor = OPERATOR) -> PlanView:
        """Assigns a tenant to a plan, within a second. Raises TenantNotFound, PlanNotFound."""
        async with self._database.write(EVERY_TENANT) as session:
            directory = TenantDirectory(session)
            plan = await directory.lock_plan(name)
            if plan is None:
                raise PlanNotFound(name)
            tenant = await directory.tenant(tenant_id)
            if tenant is None:
                raise TenantNotFound(tenant_id)
            tenant.plan_id = plan.id
            digests = await KeyRepository(session, tenant_id).digests()
            session.after_commit(lambda: publish_key_changes(self._redis, digests))
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "organization.updated",
                ("organization", tenant_id),
                {"plan": name},
            )
        return plan_view(plan)


def revision(plan: PlanView) -> str:
    """Returns a hash of the plan's values, to detect concurrent changes."""
    whole = asdict(replace(plan, gate={}, terms={}, limits={})) | {
        "gate": dict(plan.gate),
        "limits": dict(plan.limits),
        "terms": {tier.value: asdict(terms) for tier, terms in plan.terms.items()},
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


async def _record(
    session: WriteSession, actor: Actor, type: str, plan_id: str, values: Mapping[str, Any]
) -> None:
    details = {name: _exact(value) for name, value in values.items()}
    await AuditLog.record(session, OPERATOR_CHAIN, actor, type, ("plan", plan_id), details)


def _exact(value: Any) -> Any:
    """Returns floats as strings, because audit log details cannot contain floats."""
    if isinstance(value, float):
        return repr(value)
    return {name: _exact(one) for name, one in value.items()} if isinstance(value, Mapping) else value
