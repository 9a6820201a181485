"""Sums the reasoning tokens of one tenant's requests by bucket and group, less those of reversals.

The rollups have no such sum: it is read from the ledger's rows, a UTC day at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, func

from billing.models import Reversal, UsageRecord
from billing.reports.repository import is_among, reversed_reasoning_tokens
from db.repository import TenantRepository
from db.rollup_intervals import Unit

Group = tuple[Any, ...]
"""The bucket's start, and the values of the columns that are grouped by; "" where there is none."""


class ReasoningSums(TenantRepository):
    """Sums one tenant's reasoning tokens."""

    async def of_days(
        self,
        days: Collection[datetime],
        start: datetime,
        end: datetime,
        unit: Unit,
        group_by: Sequence[str],
        wanted: Mapping[str, Sequence[str]],
        excluded_key_ids: Sequence[str] = (),
    ) -> Counter[Group]:
        """Returns the sums of these UTC days, as far as they are in [start, end). `group_by` names some of
        `billing.rollups.KEYS`; `wanted` lists the values that count, by column.
        """
        found: Counter[Group] = Counter()
        for day in sorted(days):
            begins, ends = max(start, day), min(end, day + timedelta(days=1))
            for model, at, tokens, counts in (
                (UsageRecord, UsageRecord.submitted_at, UsageRecord.reasoning_tokens, 1),
                (Reversal, Reversal.at, reversed_reasoning_tokens(), -1),
            ):
                query = self._summed(model, at, tokens, unit, group_by).where(
                    at >= begins,
                    at < ends,
                    *(is_among(getattr(model, name), values) for name, values in wanted.items()),
                )
                if model is UsageRecord:
                    query = query.where(UsageRecord.reasoning_tokens > 0)
                if excluded_key_ids:
                    query = query.where(model.key_id.not_in(excluded_key_ids))
                for *group, total in (await self.session.execute(query)).all():
                    found[tuple(group)] += counts * int(total)
        return found

    def _summed(
        self, model: type[UsageRecord | Reversal], at: Any, tokens: Any, unit: Unit, group_by: Sequence[str]
    ) -> Select[Any]:
        bucket = func.date_trunc(unit, at, "UTC").label("bucket")
        groups = [func.coalesce(getattr(model, name), "").label(name) for name in group_by]
        query = self.select_own(model, bucket, *groups, func.sum(tokens).label("total"))
        return query.group_by("bucket", *(group.name for group in groups))
