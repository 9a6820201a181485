"""Queries all books at once, and the results of comparisons. The session's scope is every tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.folding import Measured
from billing.reconciliation.differences import Difference, OnItsWay, Outcome, Report
from billing.reconciliation.models import Reconciliation, ReconciliationDifference

DAY_SUMS = ("num_requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")

_BEHIND = text(
    """
    SELECT x.tenant_id, x.request_id, to_timestamp(x.submitted) AS submitted_at, f.name, f.expected, f.found
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(tenant_id text, request_id text,
        submitted double precision, prompt_tokens bigint, cached_tokens bigint, completion_tokens bigint,
        reasoning_tokens bigint)
    LEFT JOIN usage_records r ON r.submitted_at = to_timestamp(x.submitted) AND r.request_id = x.request_id
        AND r.submitted_at BETWEEN to_timestamp(:earliest) AND to_timestamp(:latest)
    CROSS JOIN LATERAL (VALUES
        ('requests', 1, CASE WHEN r.request_id IS NULL THEN 0 ELSE 1 END),
        ('prompt tokens', x.prompt_tokens, coalesce(r.prompt_tokens, 0)),
        ('cached tokens', x.cached_tokens, coalesce(r.cached_tokens, 0)),
        ('completion tokens', x.completion_tokens, coalesce(r.completion_tokens, 0)),
        ('reasoning tokens', x.reasoning_tokens, coalesce(r.reasoning_tokens, 0))
    ) AS f(name, expected, found)
    WHERE f.found < f.expected ORDER BY 3, 2, 4
    """
)
_FIXED = (
    "tenant_id", "key_id", "model", "adapter_id", "adapter_version", "service_tier", "project_id", "user_id",
    "price_id", "input_price", "cached_input_price", "output_price", "price_percent",
    "owner_id", "share_id", "share_input_price", "share_output_price", "owner_percent",
)  # fmt: skip
_STANDING = text(
    f"""
    SELECT r.request_id, {", ".join(f"r.{name}" for name in _FIXED)},
           r.prompt_tokens, r.cached_tokens, r.completion_tokens, r.reasoning_tokens,
           r.finish_reason
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(request_id text, submitted double precision)
    JOIN usage_records r ON r.submitted_at = to_timestamp(x.submitted) AND r.request_id = x.request_id
        AND r.submitted_at BETWEEN to_timestamp(:earliest) AND to_timestamp(:latest)
    """
)
_PAID_BY_JOB = "calibration"
"""The endpoint of requests that score an adapter's samples: the job is charged, not the requests."""
_MISPRICED = text(
    f"""
    SELECT r.tenant_id, r.request_id, r.submitted_at, f.name, f.expected, f.found
    FROM usage_records r LEFT JOIN prices p ON p.id = r.price_id
    CROSS JOIN LATERAL (SELECT CASE WHEN r.adapter_id IS NULL THEN 0 ELSE p.adapter_surcharge END) s(charge)
    CROSS JOIN LATERAL (VALUES
        ('price ' || r.price_id, 1, CASE WHEN p.id IS NULL THEN 0 ELSE 1 END),
        ('input price', p.input + s.charge, r.input_price),
        ('cached input price', p.cached_input + s.charge, r.cached_input_price),
        ('output price', p.output + s.charge, r.output_price)
    ) AS f(name, expected, found)
    WHERE r.submitted_at >= :start AND r.submitted_at < :end AND r.price_id <> '' AND f.found <> f.expected
    UNION ALL
    SELECT r.tenant_id, r.request_id, r.submitted_at, 'version of the price list', 1, 0
    FROM usage_records r
    WHERE r.submitted_at >= :start AND r.submitted_at < :end AND r.price_id = ''
      AND r.endpoint <> '{_PAID_BY_JOB}'
      AND r.submitted_at >= (SELECT min(effective_from) + interval '1 minute' FROM prices)
    ORDER BY 3, 2, 4 LIMIT :most
    """
)
_STORAGE_CHARGES = text(
    "SELECT id, tenant_id, cost FROM charges WHERE kind = 'adapter_storage' AND id LIKE :pattern"
)
_UNCHARGED = text(
    """
    SELECT CAST(days.day AS date) AS day
    FROM generate_series(CAST(:start AS timestamptz), CAST(:end AS timestamptz) - interval '1 day', '1 day')
        AS days(day)
    WHERE EXISTS (SELECT FROM adapter_storage s WHERE s.since < days.day + interval '1 day'
                  AND (s.until IS NULL OR s.until > days.day))
      AND NOT EXISTS (SELECT FROM charged_days c WHERE c.day = CAST(days.day AS date))
    """
)
_CALIBRATIONS_DUE = text(
    "SELECT tenant_id, job_id, finished_at FROM calibrations_due WHERE finished_at < :before"
)
_ACTIVE = text(
    """
    SELECT tenant_id FROM usage_records WHERE submitted_at >= :start AND submitted_at < :end
    UNION SELECT tenant_id FROM usage_rollup_days WHERE day >= :start AND day < :end
    UNION SELECT tenant_id FROM charges WHERE at >= :start AND at < :end
    UNION SELECT tenant_id FROM reversals WHERE at >= :start AND at < :end
    ORDER BY 1
    """
)
_DAYS = text(
    f"""
    SELECT date_trunc('day', at, 'UTC') AS day, CAST(sum(charged) AS bigint) AS charged,
           {", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in DAY_SUMS)}
    FROM (
        SELECT submitted_at AS at, 1 AS num_requests, prompt_tokens, cached_tokens, completion_tokens,
               cost + surcharge AS cost, 0 AS charged
        FROM usage_records WHERE tenant_id = :tenant AND submitted_at >= :start AND submitted_at < :end
        UNION ALL
        SELECT at, -num_requests, -prompt_tokens, -cached_tokens, -completion_tokens,
               CASE WHEN charge_id IS NULL THEN -cost ELSE 0 END,
               CASE WHEN charge_id IS NULL THEN 0 ELSE -cost END
        FROM reversals WHERE tenant_id = :tenant AND at >= :start AND at < :end
        UNION ALL
        SELECT at, 0, 0, 0, 0, 0, cost FROM charges
        WHERE tenant_id = :tenant AND at >= :start AND at < :end
    ) AS rows GROUP BY 1
    """
)
_STUCK = text(
    "SELECT tenant_id, identifier, hour, value, error FROM meter_events WHERE state = 'manual' ORDER BY 1, 3"
)
_METERED = text(
    """
    SELECT a.tenant_id, a.stripe_customer_id AS customer_id, date_trunc('hour', e.timestamp, 'UTC') AS hour,
           CAST(sum(e.value) AS bigint) AS value
    FROM billing_accounts a LEFT JOIN meter_events e ON e.tenant_id = a.tenant_id AND e.state = 'sent'
        AND e.timestamp >= :start AND e.timestamp < :end
    WHERE a.stripe_customer_id IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 3
    """
)
_LOCK = text("SELECT pg_try_advisory_xact_lock(:lock)")
RECONCILER_LOCK = 0x52636E63
"""The advisory lock ("Rcnc") of the worker that runs a due reconciliation."""


@dataclass(frozen=True, slots=True)
class DayTotals:
    """The sums of a tenant's UTC day, from its rows."""

    day: datetime
    sums: dict[str, int]
    """Values by the names in DAY_SUMS."""
    charged: int
    """Micro-USD of charges."""


_DOCUMENTS = text(
    """
    SELECT d.id, d.tenant_id, i.issued_at, d.cents, d.state, d.error, d.provider_id,
           CAST(coalesce((
               SELECT sum(n.amount_cents) FROM credit_notes n
               LEFT JOIN stripe_documents s ON s.id = n.id
               WHERE n.invoice_id = d.id AND n.settlement IN ('due', 'refund')
                   AND s.state IS DISTINCT FROM 'waived'
           ), 0) AS bigint) AS credited,
           CAST(coalesce((
               SELECT sum(p.amount_cents) FROM invoice_payments p
               WHERE p.invoice_id = d.id AND p.kind = 'payment' AND p.reference = d.provider_id
           ), 0) AS bigint) AS paid
    FROM stripe_documents d JOIN invoices i ON i.id = d.id
    WHERE d.kind = 'invoice' AND i.issued_at >= :start AND i.issued_at < :end
    ORDER BY i.number
    """
)


class BooksRepository:
    """Queries every book, to compare them."""

    FIXED = _FIXED
    """What every event of a request has alike, of what it is billed by."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def behind(self, rows: Sequence[Measured]) -> list[Any]:
        """Returns where the ledger has less than journal entries say: (tenant_id, request_id, submitted_at,
        name, expected, found).
        """
        if not rows:
            return []
        documents = [
            {
                "tenant_id": row.tenant_id,
                "request_id": row.request_id,
                "submitted": row.submitted_at,
                "prompt_tokens": row.prompt_tokens,
                "cached_tokens": row.cached_tokens,
                "completion_tokens": row.completion_tokens,
                "reasoning_tokens": row.reasoning_tokens,
            }
            for row in rows
        ]
        times = [row.submitted_at for row in rows]
        values = {
            "rows": msgspec.json.encode(documents).decode(),
            "earliest": min(times) - 1e-3,
            "latest": max(times) + 1e-3,
        }
        return list((await self.session.execute(_BEHIND, values)).all())

    async def standing(self, rows: Sequence[Measured]) -> dict[str, Any]:
        """Returns the ledger's rows of requests by id: FIXED, token counts, finish reason."""
        if not rows:
            return {}
        documents = [{"request_id": row.request_id, "submitted": row.submitted_at} for row in rows]
        times = [row.submitted_at for row in rows]
        values = {
            "rows": msgspec.json.encode(documents).decode(),
            "earliest": min(times) - 1e-3,
            "latest": max(times) + 1e-3,
        }
        return {row.request_id: row for row in await self.session.execute(_STANDING, values)}

    async def mispriced(self, start: datetime, end: datetime, most: int) -> list[Any]:
        """Returns records whose prices differ from their version of the price list, or that name no version
        although there was one: (tenant_id, request_id, submitted_at, name, expected, found).
        """
        values = {"start": start, "end": end, "most": most}
        return list((await self.session.execute(_MISPRICED, values)).all())

    async def storage_charges(self, day: datetime) -> dict[str, tuple[str, int]]:
        """Returns (tenant, cost) of one day's storage charges by id."""
        values = {"pattern": f"storage:{day:%Y-%m-%d}:%"}
        return {
            row.id: (row.tenant_id, row.cost) for row in await self.session.execute(_STORAGE_CHARGES, values)
        }

    async def uncharged_days(self, start: datetime, end: datetime) -> list[Any]:
        """Returns whole days in [start, end) with stored bytes that are not charged."""
        return list((await self.session.execute(_UNCHARGED, {"start": start, "end": end})).scalars())

    async def calibrations_due(self, before: datetime) -> list[Any]:
        """Returns (tenant_id, job_id, finished_at) of jobs that ended before then and are not charged."""
        return list((await self.session.execute(_CALIBRATIONS_DUE, {"before": before})).all())

    async def active_tenants(self, start: datetime, end: datetime) -> list[str]:
        """Returns the tenants that have anything in any book of [start, end)."""
        return list((await self.session.execute(_ACTIVE, {"start": start, "end": end})).scalars())

    async def days(self, tenant_id: str, start: datetime, end: datetime) -> dict[datetime, DayTotals]:
        """Returns the sums of a tenant's rows by day."""
        values = {"tenant": tenant_id, "start": start, "end": end}
        return {
            row.day: DayTotals(row.day, {name: getattr(row, name) for name in DAY_SUMS}, row.charged)
            for row in await self.session.execute(_DAYS, values)
        }

    async def stuck_events(self) -> list[Any]:
        """Returns (tenant_id, identifier, hour, value, error) of meter events that need an operator."""
        return list((await self.session.execute(_STUCK)).all())

    async def metered(self, start: datetime, end: datetime) -> list[Any]:
        """Returns (tenant_id, customer_id, hour, value) of what arrived at the payment provider; for a
        customer with nothing, one row without hour and value.
        """
        return list((await self.session.execute(_METERED, {"start": start, "end": end})).all())

    async def documents(self, start: datetime, end: datetime) -> list[Any]:
        """Returns (id, tenant_id, issued_at, cents, state, error, provider_id, credited, paid) of invoices
        that the payment provider gets, with the credit notes issued and the payments recorded here.
        """
        return list((await self.session.execute(_DOCUMENTS, {"start": start, "end": end})).all())


class ReconciliationRepository:
    """Queries the results of reconciliations."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def take_turn(self) -> bool:
        """Takes the lock until the transaction ends; returns False if another worker has it."""
        return bool((await self.session.execute(_LOCK, {"lock": RECONCILER_LOCK})).scalar_one())

    async def add(self, report: Report, most: int) -> None:
        """Stores a report, with the first `most` of its differences."""
        self.session.add(
            Reconciliation(
                id=report.id,
                started_at=report.started_at,
                ended_at=report.ended_at,
                span_start=report.start,
                span_end=report.end,
                outcomes={check: _kept(check, report) for check in report.outcomes},
                num_differences=report.num_differences,
            )
        )
        await self.session.flush()
        rows = [
            {
                "reconciliation_id": report.id,
                "number": number,
                "tenant_id": one.tenant_id,
                "check_name": one.check,
                "what": one.what,
                "at": one.at,
                "expected": one.expected,
                "found": one.found,
            }
            for number, one in enumerate(report.differences[:most])
        ]
        if rows:
            await self.session.execute(insert(ReconciliationDifference), rows)

    async def latest(self) -> Report | None:
        """Returns the latest report, without its differences."""
        query = (
            select(Reconciliation)
            .order_by(Reconciliation.started_at.desc(), Reconciliation.id.desc())
            .limit(1)
        )
        row = (await self.session.execute(query)).scalar_one_or_none()
        return None if row is None else _report(row, ())

    async def page(self, *, after: str | None, limit: int) -> list[Report]:
        """Returns reports older than the id `after`, the newest first, without their differences."""
        query = select(Reconciliation).order_by(Reconciliation.id.desc()).limit(limit)
        if after is not None:
            query = query.where(Reconciliation.id < after)
        return [_report(row, ()) for row in (await self.session.execute(query)).scalars()]

    async def find(self, reconciliation_id: str) -> Report | None:
        row = await self.session.get(Reconciliation, reconciliation_id)
        if row is None:
            return None
        query = (
            select(ReconciliationDifference)
            .where(ReconciliationDifference.reconciliation_id == reconciliation_id)
            .order_by(ReconciliationDifference.number)
        )
        found = (await self.session.execute(query)).scalars()
        return _report(
            row,
            [
                Difference(one.check_name, one.tenant_id, one.what, one.at, one.expected, one.found)
                for one in found
            ],
        )

    async def was_made(self, since: datetime, until: datetime) -> bool:
        """Returns whether a reconciliation at or after `since` covered everything up to `until`."""
        query = select(Reconciliation.id).where(
            Reconciliation.started_at >= since, Reconciliation.span_end >= until
        )
        return (await self.session.execute(query.limit(1))).scalar_one_or_none() is not None


def _kept(check: str, report: Report) -> dict[str, Any]:
    outcome = report.outcomes[check]
    kept: dict[str, Any] = {"differences": outcome.differences, "why_not": outcome.why_not}
    if outcome.on_its_way:
        kept["on_its_way"] = outcome.on_its_way
        kept["oldest"] = msgspec.to_builtins(report.on_their_way)
    return kept


def _report(row: Reconciliation, differences: Sequence[Difference]) -> Report:
    return Report(
        row.id,
        row.started_at,
        row.ended_at,
        row.span_start,
        row.span_end,
        {
            check: Outcome(found["differences"], found["why_not"], found.get("on_its_way", 0))
            for check, found in row.outcomes.items()
        },
        row.num_differences,
        differences,
        [
            msgspec.convert(one, OnItsWay)
            for found in row.outcomes.values()
            for one in found.get("oldest", ())
        ],
    )
