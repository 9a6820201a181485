"""Reads the ledger as a table: a row for every request, every charge, and every reversal of one of these.

A reversal's amounts are negative, so the sums of a column equal those of the usage and cost reports over the
same time. Requests come first, then charges, then reversals, each ordered by time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, literal, null

from billing.models import Charge, Reversal, UsageRecord
from billing.reports.filtering import WHOLE, Slice
from billing.reports.repository import LedgerRows, Place, reversed_reasoning_tokens
from billing.reports.tables import Column, Row
from db.session import Database

PAGE_ROWS = 500
"""Few enough that reading them blocks an event loop for milliseconds only."""

COLUMNS: tuple[Column, ...] = (
    Column("kind", "text", repeats=True),
    Column("id", "text"),
    Column("at", "moment"),
    Column("reverses", "text"),
    Column("project_id", "text", repeats=True),
    Column("user_id", "text", repeats=True),
    Column("api_key_id", "text", repeats=True),
    Column("endpoint", "text", repeats=True),
    Column("model", "text", repeats=True),
    Column("adapter_id", "text", repeats=True),
    Column("adapter_version", "count"),
    Column("service_tier", "text", repeats=True),
    Column("num_requests", "count"),
    Column("input_tokens", "count"),
    Column("input_cached_tokens", "count"),
    Column("output_tokens", "count"),
    Column("num_choices", "count"),
    Column("finish_reason", "text", repeats=True),
    Column("queue_seconds", "seconds"),
    Column("first_token_seconds", "seconds"),
    Column("total_seconds", "seconds"),
    Column("preemptions", "count"),
    Column("quantity", "count"),
    Column("price_id", "text", repeats=True),
    Column("unit_price", "count"),
    Column("input_price", "count"),
    Column("cached_input_price", "count"),
    Column("output_price", "count"),
    Column("price_percent", "count"),
    Column("cost_micro_usd", "count"),
    Column("reference", "text"),
    Column("reasoning_tokens", "count"),
    Column("owner_id", "text", repeats=True),
    Column("share_id", "text", repeats=True),
    Column("share_input_price", "count"),
    Column("share_output_price", "count"),
    Column("surcharge_micro_usd", "count"),
)
"""Prices are micro-USD: per million tokens, or per unit of a charge. New columns come last: none moves."""


def _unless_empty(column: Any) -> Any:
    return func.nullif(column, "")


# The columns of each kind of row. The database writes them, which keeps a row cheap here.
_REQUESTS: dict[str, Any] = {
    "kind": literal("request"),
    "id": UsageRecord.request_id,
    "at": UsageRecord.submitted_at,
    "project_id": UsageRecord.project_id,
    "user_id": UsageRecord.user_id,
    "api_key_id": _unless_empty(UsageRecord.key_id),
    "endpoint": _unless_empty(UsageRecord.endpoint),
    "model": _unless_empty(UsageRecord.model),
    "adapter_id": UsageRecord.adapter_id,
    "adapter_version": UsageRecord.adapter_version,
    "service_tier": _unless_empty(UsageRecord.service_tier),
    "num_requests": literal(1),
    "input_tokens": UsageRecord.prompt_tokens,
    "input_cached_tokens": UsageRecord.cached_tokens,
    "output_tokens": UsageRecord.completion_tokens,
    "num_choices": UsageRecord.num_choices,
    "finish_reason": UsageRecord.finish_reason,
    "queue_seconds": UsageRecord.queue_seconds,
    "first_token_seconds": UsageRecord.first_token_seconds,
    "total_seconds": UsageRecord.total_seconds,
    "preemptions": UsageRecord.preemptions,
    "price_id": _unless_empty(UsageRecord.price_id),
    "input_price": UsageRecord.input_price,
    "cached_input_price": UsageRecord.cached_input_price,
    "output_price": UsageRecord.output_price,
    "price_percent": UsageRecord.price_percent,
    "cost_micro_usd": UsageRecord.cost + UsageRecord.surcharge,
    "reasoning_tokens": UsageRecord.reasoning_tokens,
    "owner_id": UsageRecord.owner_id,
    "share_id": UsageRecord.share_id,
    "share_input_price": UsageRecord.share_input_price,
    "share_output_price": UsageRecord.share_output_price,
    "surcharge_micro_usd": UsageRecord.surcharge,
}
_CHARGES: dict[str, Any] = {
    "kind": Charge.kind,
    "id": Charge.id,
    "at": Charge.at,
    "num_requests": literal(0),
    "input_tokens": literal(0),
    "input_cached_tokens": literal(0),
    "output_tokens": literal(0),
    "quantity": Charge.quantity,
    "price_id": _unless_empty(Charge.price_id),
    "unit_price": Charge.unit_price,
    "cost_micro_usd": Charge.cost,
    "reference": Charge.reference,
    "reasoning_tokens": literal(0),
    "surcharge_micro_usd": literal(0),
}
_REVERSALS: dict[str, Any] = {
    "kind": literal("reversal"),
    "id": Reversal.id,
    "at": Reversal.at,
    "reverses": func.coalesce(Reversal.request_id, Reversal.charge_id),
    "project_id": _unless_empty(Reversal.project_id),
    "user_id": _unless_empty(Reversal.user_id),
    "api_key_id": _unless_empty(Reversal.key_id),
    "model": _unless_empty(Reversal.model),
    "adapter_id": _unless_empty(Reversal.adapter_id),
    "service_tier": _unless_empty(Reversal.service_tier),
    "num_requests": -Reversal.num_requests,
    "input_tokens": -Reversal.prompt_tokens,
    "input_cached_tokens": -Reversal.cached_tokens,
    "output_tokens": -Reversal.completion_tokens,
    "cost_micro_usd": -Reversal.cost,
    "reference": Reversal.reason,
    "reasoning_tokens": -reversed_reasoning_tokens(),
    "owner_id": Reversal.owner_id,
    "share_id": Reversal.share_id,
    "surcharge_micro_usd": -Reversal.surcharge,
}
_ID, _AT = (
    next(place for place, column in enumerate(COLUMNS) if column.name == name) for name in ("id", "at")
)


async def ledger_pages(
    database: Database,
    tenant_id: str,
    start: datetime,
    end: datetime,
    page_rows: int = PAGE_ROWS,
    slice: Slice = WHOLE,
) -> AsyncIterator[Sequence[Row]]:
    """Yields the table's rows of [start, end) in pages. No transaction is open between two pages.

    A slice excludes charges and their reversals, which belong to no project and no key. Raises
    DatabaseUnavailable.
    """
    wanted = slice.columns
    for model, cells in ((UsageRecord, _REQUESTS), (Charge, _CHARGES), (Reversal, _REVERSALS)):
        if wanted and model is Charge:
            continue
        columns = [cells.get(column.name, null()).label(column.name) for column in COLUMNS]
        after: Place | None = None
        while True:
            async with database.read(tenant_id) as session:
                rows = LedgerRows(session, tenant_id)
                page = await rows.page(
                    model, columns, cells["at"], cells["id"], start, end, after, page_rows, wanted
                )
            if page:
                after = (page[-1][_AT], page[-1][_ID])
                yield page
            if len(page) < page_rows:
                break
