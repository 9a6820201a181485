"""Formats the margin report: totals, and lines by tenant and service tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MONTHS = 13
_CLASSES = {"priority": "Priority", "default": "Default", "flex": "Flex", "": "Storage and calibration"}


@dataclass(frozen=True)
class MarginRow:
    tenant_id: str
    tenant: str
    what: str
    requests: int
    gpu_seconds: float
    revenue: int
    cost: int
    margin: int


@dataclass(frozen=True)
class MarginPage:
    report: Mapping[str, Any]
    rows: list[MarginRow]
    busy_share: float | None
    """Of the time that is paid."""


def margin(report: Mapping[str, Any], names: Mapping[str, str]) -> MarginPage:
    rows = [
        MarginRow(
            line["tenant_id"],
            names.get(line["tenant_id"], line["tenant_id"]),
            _CLASSES.get(line["service_tier"], line["service_tier"]),
            line["num_requests"],
            line["gpu_us"] / 1_000_000,
            line["revenue"],
            line["cost"],
            line["margin"],
        )
        for line in report["lines"]
    ]
    rows.sort(key=lambda row: (-row.revenue, row.tenant))
    paid = report["paid_seconds"]
    return MarginPage(report, rows, report["busy_seconds"] / paid if paid else None)


def months(now: datetime) -> list[tuple[str, str]]:
    """To choose from, this one first."""
    year, month, found = now.year, now.month, []
    for _ in range(MONTHS):
        found.append((f"{year:04d}-{month:02d}", datetime(year, month, 1).strftime("%B %Y")))
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    return found
