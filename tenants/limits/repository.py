"""Reads and writes limits: a tenant's rows, and the column of a key's limits for the query that resolves
keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql import ColumnElement as Column

from db.repository import TenantRepository, owner
from tenants.limits.kinds import SCOPES, Limit, Metric, Scope
from tenants.limits.models import LimitRow
from tenants.models import Plan, Tenant


def limits_of_key(tenant_id: Column[Any], project_id: Column[Any], key_id: Column[Any]) -> ColumnElement[Any]:
    """Returns a column for queries on keys: each key's limit rows, as `compiled` reads them, or NULL."""
    row = LimitRow
    fields = func.jsonb_build_array(
        row.scope, row.scope_id, row.model, row.metric, row.amount, row.counted_as
    )
    applies = or_(
        and_(row.scope == "tenant", row.scope_id == tenant_id),
        and_(row.scope == "project", row.scope_id == project_id),
        and_(row.scope == "key", row.scope_id == key_id),
    )
    query = select(func.jsonb_agg(fields, type_=JSONB)).where(row.tenant_id == tenant_id, applies)
    return query.scalar_subquery().label("limits")


def compiled(
    tenant_id: str, plan: Mapping[str, int], rows: Iterable[Sequence[Any]] | None
) -> tuple[Limit, ...]:
    """Returns all limits that apply, in a fixed order: the plan's for the tenant, overridden by `rows`."""
    limits = {
        ("tenant", tenant_id, "", metric): Limit("tenant", tenant_id, "", Metric(metric), amount)
        for metric, amount in plan.items()
    }
    for scope, scope_id, model, metric, amount, counted_as in rows or ():
        limits[(scope, scope_id, model, metric)] = Limit(
            scope, scope_id, model, Metric(metric), amount, counted_as
        )
    return tuple(
        sorted(
            limits.values(),
            key=lambda limit: (SCOPES.index(limit.scope), limit.scope_id, limit.metric, limit.model),
        )
    )


_EFFECTIVE = (
    select(Plan.limits, LimitRow)
    .join(Tenant, Tenant.plan_id == Plan.id)
    .outerjoin(LimitRow, LimitRow.tenant_id == Tenant.id)
    .where(Tenant.id == owner())
)


class LimitRepository(TenantRepository):
    """Limits of one tenant."""

    async def all(self) -> list[Limit]:
        rows = (await self.session.execute(self.select_own(LimitRow))).scalars()
        return list(compiled(self.tenant_id, {}, [_fields(row) for row in rows]))

    async def effective(self) -> tuple[Limit, ...] | None:
        """Returns the limits that apply: the plan's for the tenant, overridden by its rows. None if there is
        no such tenant.
        """
        found = (await self.execute_own(_EFFECTIVE)).all()
        if not found:
            return None
        return compiled(self.tenant_id, found[0][0], [_fields(row) for _, row in found if row is not None])

    async def of_key(self, project_id: str, key_id: str) -> Any:
        """Returns the limit rows of a project's key, as `compiled` reads them; or None."""
        column = limits_of_key(literal(self.tenant_id), literal(project_id), literal(key_id))  # type: ignore[arg-type]
        return (await self.session.execute(select(column))).scalar_one()

    async def count(self) -> int:
        return (await self.session.execute(self.select_own(LimitRow, func.count()))).scalar_one()

    async def stored(self, metric: Metric) -> int | None:
        """Returns the tenant's amount of `metric`, else its plan's; None if neither is set."""
        own = self.select_own(LimitRow, LimitRow.amount).where(
            LimitRow.scope == "tenant", LimitRow.model == "", LimitRow.metric == metric.value
        )
        of_plan = (
            select(cast(Plan.limits[metric.value].as_string(), BigInteger))
            .join(Tenant, Tenant.plan_id == Plan.id)
            .where(Tenant.id == self.tenant_id)
        )
        query = select(func.coalesce(own.scalar_subquery(), of_plan.scalar_subquery()))
        return (await self.session.execute(query)).scalar_one()

    async def set(self, limit: Limit) -> int | None:
        """Inserts or replaces a limit. Returns the previous amount, or None if there was no row."""
        before = await self._locked(limit.scope, limit.scope_id, limit.model, limit.metric)
        values = {
            "tenant_id": self.tenant_id,
            "scope": limit.scope,
            "scope_id": limit.scope_id,
            "model": limit.model,
            "metric": limit.metric.value,
            "amount": limit.amount,
        }
        statement = insert(LimitRow).values(values)
        changed = {"amount": statement.excluded.amount, "updated_at": func.now()}
        await self.session.execute(statement.on_conflict_do_update(constraint="pk_limits", set_=changed))
        return None if before is None else before.amount

    async def delete(self, scope: Scope, scope_id: str, model: str, metric: Metric) -> int | None:
        """Deletes a limit. Returns its amount, or None if there was no row."""
        row = await self._locked(scope, scope_id, model, metric)
        if row is None:
            return None
        await self.session.delete(row)
        return row.amount

    async def carry_over(self, key_id: str, new_key_id: str) -> None:
        """Copies the limits of a key to the one that replaces it. Both count together."""
        copied = self.select_own(
            LimitRow,
            LimitRow.tenant_id,
            LimitRow.scope,
            literal(new_key_id),
            LimitRow.model,
            LimitRow.metric,
            LimitRow.amount,
            func.coalesce(LimitRow.counted_as, LimitRow.scope_id),
        ).where(LimitRow.scope == "key", LimitRow.scope_id == key_id)
        columns = ["tenant_id", "scope", "scope_id", "model", "metric", "amount", "counted_as"]
        await self.session.execute(insert(LimitRow).from_select(columns, copied))

    async def _locked(self, scope: str, scope_id: str, model: str, metric: Metric) -> LimitRow | None:
        query = self.select_own(LimitRow).where(
            LimitRow.scope == scope,
            LimitRow.scope_id == scope_id,
            LimitRow.model == model,
            LimitRow.metric == metric.value,
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()


def _fields(row: LimitRow) -> tuple[str, str, str, str, int, str | None]:
    return row.scope, row.scope_id, row.model, row.metric, row.amount, row.counted_as
