"""What a tenant's usage costs over a stretch of time, line by line: requests by kind of token, storage,
calibration. Reversals are taken off, when they were made.

Invoices and reports read this and nothing else, so they cannot differ. The lines' costs add up to the cost of
each request, which is rounded up once: what rounding adds is with the input.
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

LineKind = Literal["input", "cached_input", "output", "adapter_storage", "calibration"]
LINE_KINDS: tuple[LineKind, ...] = get_args(LineKind)


@dataclass(frozen=True, slots=True)
class CostLine:
    """One kind of what was used in one bucket, of one group. Groups not asked for are empty, as are those
    that what was used has none of.
    """

    bucket: datetime
    kind: LineKind
    quantity: int
    """Tokens, byte-days or jobs; negative where more was taken back than used."""
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
    """One tenant's costs."""

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
        """Lines of [start, end), whole minutes, by bucket, group and kind; one that is nothing is left out.

        `unit` is the bucket's width, None: one bucket, of `start`. `group_by` names some of GROUPS. With a
        filter there are no charges: they are no project's and no key's.
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
        """Micro-USD of each UTC day in [start, end), whole days, in which anything was used or taken back."""
        rows = await self.execute_own(COSTS_BY_DAY, start=start, end=end)
        return {day: int(cost) for day, cost in rows}

    async def used_between(self) -> tuple[datetime, datetime] | None:
        """Whole UTC days [first, end) outside of which the tenant has no usage, charge or reversal; None: it
        has none at all.
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
        ("input", row.prompt_tokens - row.cached_tokens, row.cost - row.cached_cost - row.output_cost),
        ("cached_input", row.cached_tokens, row.cached_cost),
        ("output", row.completion_tokens, row.output_cost),
    )
    return [CostLine(row.bucket, kind, quantity, cost, **groups) for kind, quantity, cost in of_kinds]
