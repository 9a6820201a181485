"""Queries refused requests: writes calls and hourly counts of all tenants, reads those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, delete, func, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from db.repository import TenantRepository
from tenants.refusals.models import RefusedCall, RefusedHour
from tenants.refusals.recorder import HourCount, RefusedRequest

_TEXTS = (
    "tenant_id", "request_id", "key_id", "project_id", "user_id", "method", "route", "path", "model",
    "service_tier", "code", "message", "generation_id",
)  # fmt: skip
_ADD = text(f"""
INSERT INTO refused_requests (at, status, {", ".join(_TEXTS)})
SELECT timestamptz 'epoch' + at * interval '1 microsecond', status, {", ".join(_TEXTS)}
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given(
    at bigint, status integer, {", ".join(f"{name} text" for name in _TEXTS)})
ON CONFLICT DO NOTHING
""")
# A process sends how much it has counted so far: the largest counts are the latest, however often and in
# whatever order they come.
_COUNT = text("""
INSERT INTO refused_hours AS stored (tenant_id, hour, source, status, code, refused, unlisted)
SELECT tenant_id, to_timestamp(hour), source, status, code, max(refused), max(unlisted)
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given(
    tenant_id text, hour bigint, source text, status integer, code text, refused bigint, unlisted bigint)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
ON CONFLICT (tenant_id, hour, source, status, code) DO UPDATE SET
    refused = GREATEST(stored.refused, excluded.refused),
    unlisted = GREATEST(stored.unlisted, excluded.unlisted)
""")


@dataclass(frozen=True, slots=True)
class RefusedFilter:
    """Which calls count. No values of a field means all."""

    status: int | None = None
    code: str = ""
    models: tuple[str, ...] = ()
    """Names of models; one with a version includes calls that named none."""
    key_ids: tuple[str, ...] = ()
    excluded_key_ids: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    service_tiers: tuple[str, ...] = ()

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        call = RefusedCall
        found: list[ColumnElement[bool]] = []
        if self.status is not None:
            found.append(call.status == self.status)
        if self.code:
            found.append(call.code == self.code)
        if self.models:
            names = {*self.models, *(model.partition("@")[0] for model in self.models)}
            found.append(call.model.in_(sorted(names)))
        if self.excluded_key_ids:
            found.append(call.key_id.not_in(self.excluded_key_ids))
        for column, values in (
            (call.key_id, self.key_ids),
            (call.project_id, self.project_ids),
            (call.user_id, self.user_ids),
            (call.service_tier, self.service_tiers),
        ):
            if values:
                found.append(column.in_(values))
        return found


class RefusalWriter:
    """Writes every tenant's refused calls and counts, and keeps their partitions."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def add(self, calls: Sequence[RefusedRequest]) -> None:
        """Adds calls that are not stored yet."""
        if calls:
            await self.session.execute(_ADD, {"rows": msgspec.json.encode(calls).decode()})

    async def count(self, counts: Sequence[HourCount]) -> None:
        if counts:
            await self.session.execute(_COUNT, {"rows": msgspec.json.encode(counts).decode()})

    async def ensure_partitions(self, first_day: date, num_days: int) -> int:
        """Creates the days' partitions from `first_day` on; returns how many were missing."""
        statement = text("SELECT ensure_refused_partitions(CAST(:first AS date), :days)")
        return (await self.session.execute(statement, {"first": first_day, "days": num_days})).scalar_one()

    async def forget_before(self, day: date) -> int:
        """Drops the days before `day`, and their counts; returns how many partitions were dropped."""
        midnight = datetime.combine(day, time(), UTC)
        dropped = await self.session.execute(
            text("SELECT drop_refused_partitions(CAST(:day AS date))"), {"day": day}
        )
        # Of calls, what the default partition had to take.
        await self.session.execute(delete(RefusedCall).where(RefusedCall.at < midnight))
        await self.session.execute(delete(RefusedHour).where(RefusedHour.hour < midnight))
        return dropped.scalar_one()


class RefusalRepository(TenantRepository):
    """Queries one tenant's refused calls."""

    async def page(
        self,
        start: datetime,
        end: datetime,
        wanted: RefusedFilter,
        before: tuple[datetime, str] | None,
        limit: int,
    ) -> Sequence[RefusedCall]:
        """Returns calls in [start, end), the latest first, from below the position `before`."""
        call = RefusedCall
        query = self.select_own(call).where(call.at >= start, call.at < end, *wanted.conditions)
        if before is not None:
            query = query.where(call.at <= before[0], tuple_(call.at, call.request_id) < tuple_(*before))
        query = query.order_by(call.at.desc(), call.request_id.desc()).limit(limit)
        return (await self.session.execute(query)).scalars().all()

    async def of_id(self, id: str, limit: int) -> Sequence[RefusedCall]:
        """Returns calls with this `x-request-id`, the latest first."""
        call = RefusedCall
        query = self.select_own(call).where(call.request_id == id)
        return (await self.session.execute(query.order_by(call.at.desc()).limit(limit))).scalars().all()

    async def call(self, at: datetime, request_id: str) -> RefusedCall | None:
        call = RefusedCall
        query = self.select_own(call).where(call.at == at, call.request_id == request_id)
        return (await self.session.execute(query)).scalars().first()

    async def counts(self, start: datetime, end: datetime) -> Sequence[Row[*tuple[Any, ...]]]:
        """Returns rows (status, code, refused, unlisted) of the hours that begin in [start, end), the most
        frequent first.
        """
        hour = RefusedHour
        refused = func.sum(hour.refused).label("refused")
        query = (
            self.select_own(hour, hour.status, hour.code, refused, func.sum(hour.unlisted).label("unlisted"))
            .where(hour.hour >= start, hour.hour < end)
            .group_by(hour.status, hour.code)
            .order_by(refused.desc(), hour.status, hour.code)
        )
        return (await self.session.execute(query)).all()
