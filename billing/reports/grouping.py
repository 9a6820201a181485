"""Maps OpenAI's names for groupings and filters of usage and costs to the ledger's columns.

Fields that are the same for every request here are accepted and have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from billing.reports.buckets import check_filters
from billing.reports.filtering import Slice

COLUMNS = {
    "project_id": "project_id",
    "user_id": "user_id",
    "api_key_id": "key_id",
    "model": "model",
    "service_tier": "service_tier",
    "adapter_id": "adapter_id",
}
"""The ledger's column by the name to group by: `adapter_id` is ours, the others are OpenAI's."""


def columns_of(group_by: Collection[str]) -> list[str]:
    """Returns the ledger's columns to group by, in a fixed order."""
    return [column for name, column in COLUMNS.items() if name in group_by]


def named(row: Any, group_by: Collection[str]) -> dict[str, str | None]:
    """Returns what a row was grouped by, by OpenAI's names; None where it has no value."""
    return {name: getattr(row, column) or None for name, column in COLUMNS.items() if name in group_by}


def filters(**given: Sequence[str] | None) -> dict[str, Sequence[str] | None]:
    """Returns the filters of `UsageRepository.sums` for OpenAI's names. Raises InvalidReportQuery."""
    check_filters(**given)
    return {("key_ids" if name == "api_key_ids" else name): values or None for name, values in given.items()}


def slice_of(**given: Sequence[str] | None) -> Slice:
    """Returns the slice for these filters, by OpenAI's names. Raises InvalidReportQuery."""
    return Slice(**{name: tuple(values or ()) for name, values in filters(**given).items()})
