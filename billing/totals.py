"""Computes what a tenant's usage costs over a time range, line by line: requests by kind of token,
surcharges of shared adapters, storage, calibration, less reversals at the time of the reversal.

Invoices and reports read this and nothing else, so they cannot differ. The lines' costs add up to the cost of
each request, which is rounded up once: the input line holds the rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, get_args

from sqlalchemy import func

from billing.charges import ChargeRepository
from billing.models import Charge, Reversal, UsageRollupDay
from billing.repository import COSTS_BY_DAY, UsageRepository
from db.repository import TenantRepository
from db.rollup_intervals import Unit

LineKind = Literal["input", "cached_input", "output", "surcharge", "adapter_storage", "calibration"]
LINE_KINDS: tuple[LineKind, ...] = get_args(LineKind)


@dataclass(frozen=True, slots=True)
class CostLine:
    """The usage of one kind in one bucket and group. Keys that were not grouped by are empty, and so are
    keys that the usage has no value of.
    """

    bucket: datetime
    kind: LineKind
    quantity: int
    """Tokens, byte-days or jobs; negative where more was reversed than used."""
    cost: int
    """Micro-USD."""
    model: str = ""
    service_tier: str = ""
    project_id: str = ""
    user_id: str = ""
    key_id: str = ""
    adapter_id: str = ""


GROUPS = tuple(field.name for field in fields(CostLine))[4:]


class LedgerTotals(TenantRepository):
    """Sums one tenant's costs."""

    async def costs(
        self,
        start: datetime,
        end: datetime,
        *,
        unit: Unit | None = None,
        group_by: Sequence[str] = ("model", "service_tier"),
        project_ids: Sequence[str] | None = None,
        key_ids: Sequence[str] | None = None,
    ) -> list[CostLine]:
        """Returns the lines of whole minutes in [start, end), by bucket, group and kind, without empty lines.

        `unit` is the bucket's width; None means one bucket that begins at `start`. `group_by` names some of
        GROUPS. With a filter there are no charges, since a charge belongs to no project and no key.
        """
        usage = await UsageRepository(self.session, self.tenant_id).sums(
            start, end, unit=unit, group_by=group_by, key_ids=key_ids, project_ids=project_ids
        )
        lines = [line for row in usage for line in _usage_lines(row, group_by)]
        if not (project_ids or key_ids):
            lines += await self._charges(start, end, unit, "adapter_id" in group_by)
        lines = [line for line in lines if line.quantity or line.cost]
        return sorted(lines, key=attrgetter("bucket", *GROUPS))

    async def by_day(self, start: datetime, end: datetime) -> dict[date, int]:
        """Returns micro-USD of each UTC day in [start, end), whole days, that has usage or a reversal."""
        rows = await self.execute_own(COSTS_BY_DAY, start=start, end=end)
        return {day: int(cost) for day, cost in rows}

    async def used_between(self) -> tuple[datetime, datetime] | None:
        """Returns the whole UTC days [first, end) that hold all usage, charges and reversals of the tenant;
        None if it has none.
        """
        columns = ((UsageRollupDay, UsageRollupDay.day), (Charge, Charge.at), (Reversal, Reversal.at))
        found = [
            moment
            for model, column in columns
            for moment in (
                await self.session.execute(self.select_own(model, func.min(column), func.max(column)))
            ).one()
            if moment is not None
        ]
        if not found:
            return None
        day = timedelta(days=1)
        first, last = (moment.astimezone(UTC) for moment in (min(found), max(found)))
        return _midnight(first), _midnight(last) + day

    async def _charges(
        self, start: datetime, end: datetime, unit: Unit | None, by_adapter: bool
    ) -> list[CostLine]:
        sums: dict[tuple[datetime, LineKind, str], tuple[int, int]] = {}
        for row in await ChargeRepository(self.session, self.tenant_id).sums(start, end, unit):
            stored = by_adapter and row.kind == "adapter_storage"
            key = (row.bucket, row.kind, row.reference.partition("@")[0] if stored else "")
            quantity, cost = sums.get(key, (0, 0))
            sums[key] = (quantity + row.quantity, cost + row.cost)
        return [
            CostLine(bucket, kind, quantity, cost, adapter_id=adapter_id)
            for (bucket, kind, adapter_id), (quantity, cost) in sums.items()
        ]


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _usage_lines(row: Any, group_by: Sequence[str]) -> list[CostLine]:
    groups = {name: getattr(row, name) for name in group_by}
    of_kinds: tuple[tuple[LineKind, int, int], ...] = (
        (
            "input",
            row.prompt_tokens - row.cached_tokens,
            row.cost - row.cached_cost - row.output_cost - row.surcharge,
        ),
        ("cached_input", row.cached_tokens, row.cached_cost),
        ("output", row.completion_tokens, row.output_cost),
    )
    lines = [CostLine(row.bucket, kind, quantity, cost, **groups) for kind, quantity, cost in of_kinds]
    if row.surcharge:
        tokens = row.prompt_tokens + row.completion_tokens
        lines.append(CostLine(row.bucket, "surcharge", tokens, row.surcharge, **groups))
    return lines
