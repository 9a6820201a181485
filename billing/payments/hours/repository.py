"""Queries what is still to be metered: the ledger's hourly costs against the planned meter events.

Usage before the subscription's metering began, and usage paid from a prepaid balance, is not metered.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

PLANNER_LOCK = 0x4D747273
"""The planners' advisory lock ("Mtrs"): two concurrent planners would plan the same difference."""

# Hourly costs that are metered, less the minutes paid from a balance, less what is planned.
_OPEN_HOURS = """
    WITH metered AS (
        SELECT tenant_id, min(metered_from) AS metered_from FROM stripe_subscriptions GROUP BY tenant_id
    ), moments AS (
        SELECT r.tenant_id, r.hour AS at, r.cost FROM usage_rollup_hours r
        WHERE r.hour >= :since AND r.hour < :until
      UNION ALL
        SELECT c.tenant_id, c.at, c.cost FROM charges c WHERE c.at >= :since AND c.at < :until
      UNION ALL
        SELECT v.tenant_id, v.at, -v.cost FROM reversals v
        WHERE v.charge_id IS NOT NULL AND v.at >= :since AND v.at < :until
      UNION ALL
        SELECT r.tenant_id, r.minute, -r.cost FROM usage_rollups r
        JOIN prepaid_periods p ON p.tenant_id = r.tenant_id AND r.minute >= p.since
            AND (p.until IS NULL OR r.minute < p.until)
        WHERE r.minute >= :since AND r.minute < :until
      UNION ALL
        SELECT c.tenant_id, c.at, -c.cost FROM charges c
        JOIN prepaid_periods p ON p.tenant_id = c.tenant_id AND c.at >= p.since
            AND (p.until IS NULL OR c.at < p.until)
        WHERE c.at >= :since AND c.at < :until
      UNION ALL
        SELECT v.tenant_id, v.at, v.cost FROM reversals v
        JOIN prepaid_periods p ON p.tenant_id = v.tenant_id AND v.at >= p.since
            AND (p.until IS NULL OR v.at < p.until)
        WHERE v.charge_id IS NOT NULL AND v.at >= :since AND v.at < :until
      UNION ALL
        SELECT e.tenant_id, e.hour, -e.value FROM meter_events e WHERE e.hour >= :since AND e.hour < :until
    ), differences AS (
        SELECT tenant_id, date_trunc('hour', at, 'UTC') AS hour, sum(cost) AS value
        FROM moments JOIN metered USING (tenant_id)
        WHERE date_trunc('hour', at, 'UTC') >= metered_from
        GROUP BY 1, 2 HAVING sum(cost) <> 0
    )
"""
_PLAN = text(
    _OPEN_HOURS
    + """
    INSERT INTO meter_events (tenant_id, hour, number, value, identifier, state, settled_at, next_attempt_at)
    SELECT d.tenant_id, d.hour, n.number, d.value,
           d.tenant_id || ':' || to_char(d.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24') || ':' || n.number,
           CASE WHEN d.value > 0 THEN 'pending' ELSE 'credited' END,
           CASE WHEN d.value > 0 THEN NULL ELSE CAST(:now AS timestamptz) END,
           CAST(:now AS timestamptz)
    FROM differences d CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM meter_events e WHERE e.tenant_id = d.tenant_id AND e.hour = d.hour
    ) n
    RETURNING tenant_id, value
    """
)
_DIFFERENCES = text(_OPEN_HOURS + "SELECT tenant_id, hour, value FROM differences ORDER BY 1, 2")


class HourBook:
    """Compares all tenants' hours with their meter events. Its session's scope is every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def plan(self, since: datetime, until: datetime, now: datetime) -> int:
        """Adds numbered events for the differences between the cost of hours in [since, until) and their
        plan; returns how many. There is one planner at a time.
        """
        await self.session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": PLANNER_LOCK})
        span = {"since": since, "until": until, "now": now}
        return len((await self.session.execute(_PLAN, span)).all())

    async def unplanned(self, since: datetime, until: datetime) -> list[tuple[str, datetime, int]]:
        """Returns tenants, hours and their differences from the plan."""
        rows = await self.session.execute(_DIFFERENCES, {"since": since, "until": until})
        return [(row.tenant_id, row.hour, int(row.value)) for row in rows]
