"""Manages limits of tenants, projects and keys: sets, lists and deletes them.

Every method is one transaction, and changes reach every process within a second. `Quotas` enforces the
limits; a plan's limits are set in `tenants.plans`.
"""

from __future__ import annotations

import builtins
import re

import redis.asyncio

from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import KeyNotFound, LimitNotFound, ProjectNotFound, TenantNotFound
from tenants.limits.kinds import BUDGETS, COVERED_MODEL, SCOPES, Limit, Metric, Scope, check_amount
from tenants.limits.repository import LimitRepository
from tenants.models import ApiKey
from tenants.projects.repository import ProjectRepository
from tenants.quotas.plan import bucket_key
from tenants.repository import KeyRepository, TenantDirectory
from tenants.resolver import publish_key_changes

MAX_LIMITS = 1_000
"""Most limits of one tenant."""
_MODEL = re.compile(rf"({COVERED_MODEL})?")


class LimitService:
    """Limits of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(self, tenant_id: str) -> list[Limit]:
        """Returns the limits that are set for the tenant, its projects and its keys."""
        async with self._database.read(tenant_id) as session:
            return await LimitRepository(session, tenant_id).all()

    async def effective(self, tenant_id: str) -> builtins.list[Limit]:
        """Returns all limits in force: those that are set, and the plan's others. Raises TenantNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await LimitRepository(session, tenant_id).effective()
        if found is None:
            raise TenantNotFound(tenant_id)
        return [*found]

    async def set(self, tenant_id: str, actor: Actor, limit: Limit) -> Limit:
        """Creates a limit or changes its amount.

        Raises ValueError naming the field, also if the amount exceeds the plan's and the actor is not the
        operator; ProjectNotFound, KeyNotFound or TenantNotFound if the scope does not exist.
        """
        _check(limit)
        if limit.metric.kind == "ever":
            raise ValueError(f"metric: {limit.metric} cannot be set; it is the sum of payments and credits")
        async with self._database.write(tenant_id) as session:
            await self._find_scope(session, tenant_id, limit.scope, limit.scope_id)
            if limit.scope == "tenant" and not limit.model and actor.kind != "operator":
                await _check_plan(session, tenant_id, limit)
            repository = LimitRepository(session, tenant_id)
            before = await repository.set(limit)
            if before is None and await repository.count() > MAX_LIMITS:
                raise ValueError(f"limits: a tenant can have at most {MAX_LIMITS}")
            await self._invalidate(session, tenant_id, limit.scope, limit.scope_id)
            if before is None and limit.metric.kind in BUDGETS:
                # A count left by an earlier limit of this name is out of date: without it, the first
                # request looks the usage up in the ledger.
                session.after_commit(lambda: self._forget_count(limit, tenant_id))
            details = {"model": limit.model, "metric": limit.metric.value, "amount": limit.amount}
            if before is not None:
                details["amount_before"] = before
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "limit.set",
                (limit.scope, limit.scope_id),
                details,
                project_id=limit.scope_id if limit.scope == "project" else None,
            )
        return limit

    async def delete(
        self, tenant_id: str, actor: Actor, scope: Scope, scope_id: str, model: str, metric: Metric
    ) -> None:
        """Deletes a limit, so that the plan's applies again. Raises LimitNotFound."""
        if "\x00" in scope_id + model or metric.kind == "ever":  # invalid in the database, or set by payments
            raise LimitNotFound(scope, scope_id, model, metric)
        async with self._database.write(tenant_id) as session:
            before = await LimitRepository(session, tenant_id).delete(scope, scope_id, model, metric)
            if before is None:
                raise LimitNotFound(scope, scope_id, model, metric)
            await self._invalidate(session, tenant_id, scope, scope_id)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "limit.deleted",
                (scope, scope_id),
                {"model": model, "metric": metric.value, "amount_before": before},
                project_id=scope_id if scope == "project" else None,
            )

    async def _forget_count(self, limit: Limit, tenant_id: str) -> None:
        await self._redis.delete(bucket_key(tenant_id, limit))

    async def _find_scope(self, session: WriteSession, tenant_id: str, scope: Scope, scope_id: str) -> None:
        """Checks that the limit's scope belongs to the tenant."""
        if scope == "project":
            if await ProjectRepository(session, tenant_id).hold(scope_id) is None:
                raise ProjectNotFound(scope_id)
        elif scope == "key":
            if await KeyRepository(session, tenant_id).find(scope_id) is None:
                raise KeyNotFound(scope_id)
        elif scope_id != tenant_id or await TenantDirectory(session).tenant(tenant_id) is None:
            raise TenantNotFound(scope_id)

    async def _invalidate(self, session: WriteSession, tenant_id: str, scope: Scope, scope_id: str) -> None:
        """Invalidates the keys in the limit's scope in every process's cache."""
        which = {"project": (ApiKey.project_id == scope_id,), "key": (ApiKey.id == scope_id,), "tenant": ()}
        digests = await KeyRepository(session, tenant_id).digests(*which[scope])
        session.after_commit(lambda: publish_key_changes(self._redis, digests))


async def _check_plan(session: WriteSession, tenant_id: str, limit: Limit) -> None:
    """Checks that a tenant's own limit is not above its plan's, which it replaces."""
    plan = await TenantDirectory(session).plan_of(tenant_id)
    if plan is None:
        raise TenantNotFound(tenant_id)
    most = {Metric.ADAPTERS.value: plan.max_adapters, **plan.limits}.get(limit.metric)
    if most is not None and limit.amount > most:
        raise ValueError(f"amount of {limit.metric} must be at most {most}, the plan's limit")


def _check(limit: Limit) -> None:
    if limit.scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}, not {str(limit.scope)[:60]!r}")
    if _MODEL.fullmatch(limit.model) is None:
        raise ValueError(f"model: {limit.model[:80]!r} is not a model name")
    if limit.metric.kind == "stored" and (limit.scope != "tenant" or limit.model):
        raise ValueError(f"metric: {limit.metric} can only be limited for the organization as a whole")
    check_amount(limit.metric, limit.amount)
