"""Reads and writes the samples of the status page, and what it shows of incidents."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from sqlalchemy import delete, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from sla.incidents.models import Incident
from sla.models import SlaMinute
from sla.status.components import Served
from sla.status.models import StatusDay, StatusSample

_STATES = ("operational", "degraded", "down", "maintenance")
# A sample that comes twice is counted once: the days grow by what was added.
_ADD = text(f"""
WITH added AS (
    INSERT INTO status_samples (minute, component, state)
    SELECT * FROM unnest(CAST(:minutes AS timestamptz[]), CAST(:components AS text[]),
                         CAST(:states AS text[]))
    ON CONFLICT DO NOTHING RETURNING minute, component, state
)
INSERT INTO status_days AS stored (day, component, {", ".join(_STATES)})
SELECT CAST(minute AT TIME ZONE 'UTC' AS date), component,
       {", ".join(f"count(*) FILTER (WHERE state = '{state}')" for state in _STATES)}
FROM added GROUP BY 1, 2
ON CONFLICT (day, component) DO UPDATE SET
{", ".join(f"{state} = stored.{state} + excluded.{state}" for state in _STATES)}
""")


class StatusRepository:
    """The session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, samples: Sequence[tuple[datetime, str, str]]) -> None:
        """Stores (minute, component, state), and counts them into the days. Repeats change nothing."""
        if samples:
            minutes, components, states = (list(column) for column in zip(*samples, strict=True))
            await self._session.execute(
                _ADD, {"minutes": minutes, "components": components, "states": states}
            )

    async def forget(self, samples_before: datetime, days_before: date) -> None:
        await self._session.execute(delete(StatusSample).where(StatusSample.minute < samples_before))
        await self._session.execute(delete(StatusDay).where(StatusDay.day < days_before))

    async def days(self, since: date) -> Sequence[StatusDay]:
        query = select(StatusDay).where(StatusDay.day >= since).order_by(StatusDay.component, StatusDay.day)
        return (await self._session.execute(query)).scalars().all()

    async def last_states(self) -> tuple[datetime | None, dict[str, str]]:
        """Returns the last minute that was sampled, and the states in it."""
        last = (await self._session.execute(select(func.max(StatusSample.minute)))).scalar_one()
        if last is None:
            return None, {}
        query = select(StatusSample.component, StatusSample.state).where(StatusSample.minute == last)
        return last, {row[0]: row[1] for row in (await self._session.execute(query)).tuples()}

    async def incidents(self, ended_since: datetime, most: int) -> Sequence[Incident]:
        """Returns public incidents and maintenance that are open, planned, or ended lately; newest first."""
        shown = or_(Incident.ended_at.is_(None), Incident.ended_at >= ended_since)
        query = select(Incident).where(Incident.is_public, shown).order_by(Incident.began_at.desc())
        return (await self._session.execute(query.limit(most))).scalars().all()

    async def maintained(self, at: datetime) -> Sequence[Sequence[str]]:
        """Returns the components of each public maintenance that is under way."""
        query = select(Incident.components).where(
            Incident.is_public,
            Incident.ended_at.is_(None),
            Incident.planned_until.is_not(None),
            Incident.began_at <= at,
        )
        return (await self._session.execute(query)).scalars().all()

    async def served(self, since: datetime) -> dict[str, Served]:
        """Returns what all tenants' requests got since a minute, by service tier."""
        row: Any = SlaMinute
        sums = (row.requests, row.failed, row.first_tokens, row.first_tokens_in_time)
        query = (
            select(row.service_tier, *(func.sum(one) for one in sums))
            .where(row.minute >= since)
            .group_by(row.service_tier)
        )
        return {tier: Served(*map(int, counted)) for tier, *counted in await self._session.execute(query)}
