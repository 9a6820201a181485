"""Queries on the ledger: writing records with their rollups, and summing the rollups for one tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, DateTime, Row, bindparam, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.folding import Measured
from billing.models import Price, UsageRecord, UsageRollup
from db.repository import TenantRepository
from tenants.limits.kinds import Limit
from tenants.models import ApiKey

WRITER_LOCK = 0x4C656467
"""Advisory lock, "Ledg": whoever writes records holds it, so a record's difference is taken against what is
stored.
"""

_SAME = (
    "tenant_id, key_id, model, adapter_id, adapter_version, adapter_digest, endpoint, service_tier, "
    "num_choices, engine_id"
)
_GROWING = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "preemptions", "recorded_at", "finish_reason",
    "queue_seconds", "first_token_seconds", "total_seconds",
)  # fmt: skip


def _greatest(column: str) -> str:
    # The byte order of text, whatever the database's collation: what Python's max compares by.
    collation = ' COLLATE "C"' if column == "finish_reason" else ""
    return f"{column} = GREATEST(stored.{column}{collation}, excluded.{column}{collation})"


_UPSERT = text(
    f"""
    WITH incoming AS (
        SELECT to_timestamp(submitted) AS submitted_at, to_timestamp(recorded) AS recorded_at, x.*
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(
            request_id text, submitted double precision, tenant_id text, key_id text, model text,
            adapter_id text, adapter_version integer, adapter_digest text, endpoint text, service_tier text,
            num_choices integer, engine_id text, prompt_tokens bigint, cached_tokens bigint,
            completion_tokens bigint, preemptions integer, recorded double precision, finish_reason text,
            queue_seconds double precision, first_token_seconds double precision,
            total_seconds double precision)
    ), before AS (
        SELECT r.submitted_at, r.request_id, r.prompt_tokens, r.cached_tokens, r.completion_tokens
        FROM usage_records r JOIN incoming i USING (submitted_at, request_id)
        WHERE r.submitted_at BETWEEN to_timestamp(:earliest) AND to_timestamp(:latest)
    ), after AS (
        INSERT INTO usage_records AS stored (submitted_at, request_id, {_SAME}, {", ".join(_GROWING)})
        SELECT submitted_at, request_id, {_SAME}, {", ".join(_GROWING)} FROM incoming
        ON CONFLICT (submitted_at, request_id) DO UPDATE SET {", ".join(map(_greatest, _GROWING))}
        RETURNING *
    )
    INSERT INTO usage_rollups AS sums (tenant_id, minute, key_id, model, service_tier,
                                       num_requests, prompt_tokens, cached_tokens, completion_tokens)
    SELECT a.tenant_id, date_trunc('minute', a.submitted_at, 'UTC'), a.key_id, a.model, a.service_tier,
           count(*) FILTER (WHERE b.request_id IS NULL),
           sum(a.prompt_tokens - coalesce(b.prompt_tokens, 0)),
           sum(a.cached_tokens - coalesce(b.cached_tokens, 0)),
           sum(a.completion_tokens - coalesce(b.completion_tokens, 0))
    FROM after a LEFT JOIN before b USING (submitted_at, request_id)
    GROUP BY 1, 2, 3, 4, 5
    ON CONFLICT (tenant_id, minute, key_id, model, service_tier) DO UPDATE SET
        num_requests = sums.num_requests + excluded.num_requests,
        prompt_tokens = sums.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = sums.cached_tokens + excluded.cached_tokens,
        completion_tokens = sums.completion_tokens + excluded.completion_tokens
    """
)


class LedgerWriter:
    """Writes what the meter measured, for all tenants: the one way into the ledger and its rollups."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def upsert(self, rows: Sequence[Measured]) -> None:
        """Merge rows, of distinct requests, into the ledger, and what that changed into the rollups: one
        statement.

        One writer at a time. Two that merged the same request at once would both see it absent and count it
        twice in the rollups; a batch takes milliseconds, so waiting costs less than being clever.
        """
        await self.session.execute(select(func.pg_advisory_xact_lock(WRITER_LOCK)))
        documents = []
        for row in rows:
            document = asdict(row)
            document["submitted"] = document.pop("submitted_at")
            document["recorded"] = document.pop("recorded_at")
            documents.append(document)
        times = [row.submitted_at for row in rows]
        await self.session.execute(
            _UPSERT,
            {
                "rows": msgspec.json.encode(documents).decode(),
                "earliest": min(times) - 1e-3,
                "latest": max(times) + 1e-3,
            },
        )

    async def ensure_partitions(self, first_month: date, num_months: int) -> int:
        """Make the ledger's monthly partitions from `first_month` on; how many were missing."""
        statement = text("SELECT ensure_usage_partitions(CAST(:first AS date), :months)")
        return (
            await self.session.execute(statement, {"first": first_month, "months": num_months})
        ).scalar_one()


class UsageRepository(TenantRepository):
    """One tenant's usage."""

    async def record(
        self, request_id: str, submitted_from: datetime, submitted_to: datetime
    ) -> UsageRecord | None:
        """A request's row, given when it was submitted: within `submitted_from` and `submitted_to`,
        inclusive.
        """
        query = self.select_own(UsageRecord).where(
            UsageRecord.request_id == request_id,
            UsageRecord.submitted_at.between(submitted_from, submitted_to),
        )
        return (await self.session.execute(query)).scalars().first()

    async def records(self, start: datetime, end: datetime, *, limit: int = 1000) -> list[UsageRecord]:
        """Rows submitted from `start` up to but excluding `end`, oldest first."""
        query = (
            self.select_own(UsageRecord)
            .where(UsageRecord.submitted_at >= start, UsageRecord.submitted_at < end)
            .order_by(UsageRecord.submitted_at, UsageRecord.request_id)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())

    async def sums(
        self,
        start: datetime,
        end: datetime,
        *,
        unit: str,
        group_by: Sequence[str],
        key_ids: Sequence[str] | None,
        models: Sequence[str] | None,
    ) -> list[Row[*tuple[object, ...]]]:
        """Rows (bucket, *group_by, num_requests, prompt_tokens, cached_tokens, completion_tokens) of whole
        minutes in [start, end), `unit` being what date_trunc calls the bucket's width.
        """
        bucket = func.date_trunc(unit, UsageRollup.minute, "UTC", type_=DateTime(timezone=True)).label(
            "bucket"
        )
        groups = [getattr(UsageRollup, name) for name in group_by]
        totals = [
            func.sum(column).label(column.key)
            for column in (
                UsageRollup.num_requests,
                UsageRollup.prompt_tokens,
                UsageRollup.cached_tokens,
                UsageRollup.completion_tokens,
            )
        ]
        query = self.select_own(UsageRollup, bucket, *groups, *totals).where(
            UsageRollup.minute >= start, UsageRollup.minute < end
        )
        if key_ids:
            query = query.where(UsageRollup.key_id.in_(bindparam("key_ids", list(key_ids), expanding=True)))
        if models:
            query = query.where(UsageRollup.model.in_(bindparam("models", list(models), expanding=True)))
        return list(
            (await self.session.execute(query.group_by("bucket", *groups).order_by("bucket", *groups))).all()
        )

    async def since(self, start: datetime, end: datetime, limit: Limit) -> list[Row[*tuple[object, ...]]]:
        """Rows (service_tier, num_requests, prompt_tokens, cached_tokens, completion_tokens) of all that was
        submitted in whole minutes in [start, end) and counts to `limit`.
        """
        rollup = UsageRollup
        totals = (rollup.num_requests, rollup.prompt_tokens, rollup.cached_tokens, rollup.completion_tokens)
        query = self.select_own(
            rollup, rollup.service_tier, *(func.sum(total).label(total.key) for total in totals)
        ).where(rollup.minute >= start, rollup.minute < end)
        if limit.scope == "key":
            query = query.where(rollup.key_id == limit.scope_id)
        elif limit.scope == "project":
            keys = self.select_own(ApiKey, ApiKey.id).where(ApiKey.project_id == limit.scope_id)
            query = query.where(rollup.key_id.in_(keys))
        if limit.model:
            query = query.where(_names(rollup.model, limit.model))
        return list((await self.session.execute(query.group_by(rollup.service_tier))).all())


def _names(column: Any, model: str) -> ColumnElement[bool]:
    """Whether a model's full name is one that `model` means, as `Limit.covers` has it."""
    base, _, adapter = model.partition(":")
    if adapter == "*":
        return column.startswith(f"{base}:", autoescape=True)
    if adapter and "@" not in adapter:
        return or_(column == model, column.startswith(f"{model}@", autoescape=True))
    return column == model


class PriceList:
    """Versions of the prices: everybody's, so there is no tenant to scope by."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def add(self, price: Price) -> None:
        self.session.add(price)

    async def versions(self) -> list[Price]:
        """By the moment they come into effect."""
        return list((await self.session.execute(select(Price).order_by(Price.effective_from))).scalars())
