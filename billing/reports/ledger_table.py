"""The ledger as a table: a row for every request, every charge, and every reversal of one of these.

Owns the columns, and that they add up: what a reversal takes back stands in its row with a minus, so that the
sums of a column are those of the usage and cost reports over the same time. Requests come first, then
charges, then reversals, each in the order of time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from billing.models import Charge, Reversal, UsageRecord
from billing.reports.repository import LedgerRows, Place
from billing.reports.tables import Cell, Column, Row
from db.session import Database

PAGE_ROWS = 1000

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
)
"""Prices are micro-USD: per million tokens, or of a charge per unit."""

_NAMES = [column.name for column in COLUMNS]

R = TypeVar("R", UsageRecord, Charge, Reversal)


async def ledger_pages(
    database: Database, tenant_id: str, start: datetime, end: datetime, page_rows: int = PAGE_ROWS
) -> AsyncIterator[Sequence[Row]]:
    """The table's rows of [start, end), at most so many at a time. No transaction is open between two pages.

    Raises DatabaseUnavailable.
    """
    Read = Callable[[LedgerRows, Place | None], Awaitable[Sequence[Any]]]
    sections: tuple[tuple[Read, Callable[[Any], Place], Callable[[Any], Row]], ...] = (
        (lambda rows, after: rows.records(start, end, after, page_rows), _place_of_record, record_row),
        (lambda rows, after: rows.charges(start, end, after, page_rows), _place, charge_row),
        (lambda rows, after: rows.reversals(start, end, after, page_rows), _place, reversal_row),
    )
    for read, place, written in sections:
        after: Place | None = None
        while True:
            async with database.read(tenant_id) as session:
                found = await read(LedgerRows(session, tenant_id), after)
            if found:
                after = place(found[-1])
                yield [written(row) for row in found]
            if len(found) < page_rows:
                break


def record_row(record: UsageRecord) -> Row:
    return _row(
        kind="request",
        id=record.request_id,
        at=record.submitted_at,
        project_id=record.project_id,
        user_id=record.user_id,
        api_key_id=record.key_id or None,
        endpoint=record.endpoint or None,
        model=record.model or None,
        adapter_id=record.adapter_id,
        adapter_version=record.adapter_version,
        service_tier=record.service_tier or None,
        num_requests=1,
        input_tokens=record.prompt_tokens,
        input_cached_tokens=record.cached_tokens,
        output_tokens=record.completion_tokens,
        num_choices=record.num_choices,
        finish_reason=record.finish_reason,
        queue_seconds=record.queue_seconds,
        first_token_seconds=record.first_token_seconds,
        total_seconds=record.total_seconds,
        preemptions=record.preemptions,
        price_id=record.price_id or None,
        input_price=record.input_price,
        cached_input_price=record.cached_input_price,
        output_price=record.output_price,
        price_percent=record.price_percent,
        cost_micro_usd=record.cost,
    )


def charge_row(charge: Charge) -> Row:
    return _row(
        kind=charge.kind,
        id=charge.id,
        at=charge.at,
        num_requests=0,
        input_tokens=0,
        input_cached_tokens=0,
        output_tokens=0,
        quantity=charge.quantity,
        price_id=charge.price_id or None,
        unit_price=charge.unit_price,
        cost_micro_usd=charge.cost,
        reference=charge.reference,
    )


def reversal_row(reversal: Reversal) -> Row:
    return _row(
        kind="reversal",
        id=reversal.id,
        at=reversal.at,
        reverses=reversal.request_id or reversal.charge_id,
        project_id=reversal.project_id or None,
        user_id=reversal.user_id or None,
        api_key_id=reversal.key_id or None,
        model=reversal.model or None,
        adapter_id=reversal.adapter_id or None,
        service_tier=reversal.service_tier or None,
        num_requests=-reversal.num_requests,
        input_tokens=-reversal.prompt_tokens,
        input_cached_tokens=-reversal.cached_tokens,
        output_tokens=-reversal.completion_tokens,
        cost_micro_usd=-reversal.cost,
        reference=reversal.reason,
    )


def _row(**cells: Cell) -> Row:
    return [cells.get(name) for name in _NAMES]


def _place_of_record(record: UsageRecord) -> Place:
    return (record.submitted_at, record.request_id)


def _place(row: Charge | Reversal) -> Place:
    return (row.at, row.id)
