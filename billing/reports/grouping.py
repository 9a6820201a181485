"""What usage and costs can be grouped by and filtered to, in OpenAI's words and in the ledger's.

Owns the mapping from one to the other. Fields that are the same for every request here are known and tell
nothing apart.
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
"""What can be grouped by, and the ledger's column of it: `adapter_id` is ours, the others are OpenAI's."""


def columns_of(group_by: Collection[str]) -> list[str]:
    """The ledger's columns to group by, in an order of their own."""
    return [column for name, column in COLUMNS.items() if name in group_by]


def named(row: Any, group_by: Collection[str]) -> dict[str, str | None]:
    """By OpenAI's names, what a row was grouped by; what it has none of is None."""
    return {name: getattr(row, column) or None for name, column in COLUMNS.items() if name in group_by}


def filters(**asked: Sequence[str] | None) -> dict[str, Sequence[str] | None]:
    """As `UsageRepository.sums` takes them, by OpenAI's names. Raises InvalidReportQuery."""
    check_filters(**asked)
    return {("key_ids" if name == "api_key_ids" else name): values or None for name, values in asked.items()}


def slice_of(**asked: Sequence[str] | None) -> Slice:
    """What is meant by these filters, by OpenAI's names. Raises InvalidReportQuery."""
    return Slice(**{name: tuple(values or ()) for name, values in filters(**asked).items()})
