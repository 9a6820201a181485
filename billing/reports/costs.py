"""Reports costs in the shape of OpenAI's organization costs API.

A line item is a kind of token of a model and service tier, or a kind of charge. All money is the ledger's, in
whole micro-USD: `amount_micro_usd` is exact, `amount` is the same in dollars, as the stock client reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from billing.reports.buckets import COST_WIDTHS, BucketPage, check_filters, check_groups, page_of, width_of
from billing.reports.grouping import COLUMNS, columns_of, filters, named
from billing.totals import CostLine, LedgerTotals, LineKind
from db.session import Database


class CostAmount(TypedDict):
    value: float
    """US dollars."""
    currency: Literal["usd"]


class CostResult(TypedDict):
    """What one group cost in a bucket. Fields that are not grouped by are null."""

    object: Literal["organization.costs.result"]
    amount: CostAmount
    amount_micro_usd: int
    """The exact amount."""
    line_item: str | None
    quantity: float | None
    """How much of the line item was used."""
    quantity_unit: str | None
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    api_source: str | None
    model: NotRequired[str | None]
    """Only when grouped by it."""
    service_tier: NotRequired[str | None]
    """Only when grouped by it."""
    adapter_id: NotRequired[str | None]
    """Only when grouped by it."""


GROUP_BYS = (*COLUMNS, "line_item", "api_source")
_TOKENS: dict[LineKind, str] = {
    "input": "input_tokens",
    "cached_input": "cached_input_tokens",
    "output": "output_tokens",
    "surcharge": "surcharge",
}
_BYTE_DAYS_PER_GIBIBYTE_HOUR = 2**30 / 24


class CostReports:
    """Reports the costs of one tenant per call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        tenant_id: str,
        *,
        start_time: int,
        end_time: int | None = None,
        bucket_width: str = "1d",
        limit: int | None = None,
        group_by: Sequence[str] = (),
        api_key_ids: Sequence[str] | None = None,
        project_ids: Sequence[str] | None = None,
        line_items: Sequence[str] | None = None,
        page: str | None = None,
    ) -> BucketPage[CostResult]:
        """Returns a page of buckets with the cost of the tenant's usage, charges included; times are as in
        usage reports. Reversals count negative at their own time. Charges belong to no project and no key, so
        a filter on these excludes them.

        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        width = width_of(bucket_width, COST_WIDTHS)
        check_groups(group_by, GROUP_BYS)
        check_filters(line_items=line_items)
        wanted = filters(api_key_ids=api_key_ids, project_ids=project_ids)
        report_page = page_of(width, start_time, end_time, limit, page)
        by_item = "line_item" in group_by or bool(line_items)
        groups = {*group_by, *(("model", "service_tier") if by_item else ())}
        found: Iterable[CostLine] = ()
        if report_page.spans:
            async with self._database.read(tenant_id) as session:
                found = await LedgerTotals(session, tenant_id).costs(
                    report_page.start, report_page.end, unit=width.unit, group_by=columns_of(groups), **wanted
                )
        if line_items:
            found = (line for line in found if item_of(line) in line_items)
        return report_page.filled(_results(found, group_by))


def item_of(line: CostLine) -> str:
    """Returns a line's name: a kind of token, or the surcharge, after its model, and after its service tier
    unless that is `default`; or a kind of charge.
    """
    if line.kind not in _TOKENS:
        return line.kind
    tier = "" if line.service_tier in ("", "default") else f"{line.service_tier}, "
    return f"{line.model or 'unknown'}, {tier}{_TOKENS[line.kind]}"


def _results(lines: Iterable[CostLine], group_by: Sequence[str]) -> Iterator[tuple[datetime, CostResult]]:
    """Yields the sums of each bucket and group."""
    sums: dict[tuple[datetime, tuple[str | None, ...], str], list[CostLine]] = {}
    for line in lines:
        names = tuple(named(line, group_by).values())
        item = item_of(line) if "line_item" in group_by else ""
        sums.setdefault((line.bucket, names, item), []).append(line)
    for (bucket, _, item), alike in sums.items():
        yield bucket, _result(item or None, alike, group_by)


def _result(item: str | None, lines: Sequence[CostLine], group_by: Sequence[str]) -> CostResult:
    names = named(lines[0], group_by)
    cost = sum(line.cost for line in lines)
    quantity, unit = _measured(lines) if item is not None else (None, None)
    result: CostResult = {
        "object": "organization.costs.result",
        "amount": {"value": cost / 1_000_000, "currency": "usd"},
        "amount_micro_usd": cost,
        "line_item": item,
        "quantity": quantity,
        "quantity_unit": unit,
        "project_id": names.get("project_id"),
        "user_id": names.get("user_id"),
        "api_key_id": names.get("api_key_id"),
        "api_source": "unlabeled" if "api_source" in group_by else None,
    }
    if "model" in names:
        result["model"] = names["model"]
    if "service_tier" in names:
        result["service_tier"] = names["service_tier"]
    if "adapter_id" in names:
        result["adapter_id"] = names["adapter_id"]
    return result


def _measured(lines: Sequence[CostLine]) -> tuple[float, str | None]:
    """Returns an item's quantity and unit, in one of OpenAI's units where there is one."""
    quantity = sum(line.quantity for line in lines)
    kind = lines[0].kind
    if kind == "adapter_storage":
        return quantity / _BYTE_DAYS_PER_GIBIBYTE_HOUR, "gibibyte_hours"
    return quantity, "tokens" if kind in _TOKENS else None
