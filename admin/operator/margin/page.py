"""Formats the margin report: totals, lines by tenant and service tier, and cost by adapter."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MONTHS = 13
MAX_ADAPTERS = 50
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
class AdapterRow:
    tenant_id: str
    tenant: str
    model: str
    requests: int
    tokens: int
    gpu_seconds: float
    cost: int
    cost_per_million: int | None
    revenue_per_million: int | None

    @property
    def is_loss(self) -> bool:
        """Whether a million tokens cost more than they bring."""
        cost, revenue = self.cost_per_million, self.revenue_per_million
        return cost is not None and revenue is not None and cost > revenue


@dataclass(frozen=True)
class MarginPage:
    report: Mapping[str, Any]
    rows: list[MarginRow]
    adapters: list[AdapterRow]
    """The dearest; the file has all of them."""
    num_adapters: int
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
    adapters = [_adapter_row(line, names) for line in report.get("adapters", ())]
    share = report["busy_seconds"] / paid if paid else None
    return MarginPage(report, rows, adapters[:MAX_ADAPTERS], len(adapters), share)


def _adapter_row(line: Mapping[str, Any], names: Mapping[str, str]) -> AdapterRow:
    return AdapterRow(
        line["tenant_id"],
        names.get(line["tenant_id"], line["tenant_id"]),
        line["model"] or line["adapter_id"] or "Base models",
        line["num_requests"],
        line["input_tokens"] + line["output_tokens"],
        line["gpu_us"] / 1_000_000,
        line["cost"],
        line["cost_per_million_tokens"],
        line["revenue_per_million_tokens"],
    )


ADAPTER_COLUMNS = (
    *("tenant_id", "adapter_id", "model", "num_requests", "input_tokens", "output_tokens", "gpu_us"),
    *("revenue", "cost", "margin", "revenue_per_million_tokens", "cost_per_million_tokens"),
)


def adapters_csv(report: Mapping[str, Any]) -> str:
    """Returns all adapters as CSV. Amounts are micro-USD."""
    written = io.StringIO()
    writer = csv.DictWriter(written, ADAPTER_COLUMNS, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(report.get("adapters", ()))
    return written.getvalue()


def months(now: datetime) -> list[tuple[str, str]]:
    """To choose from, this one first."""
    year, month, found = now.year, now.month, []
    for _ in range(MONTHS):
        found.append((f"{year:04d}-{month:02d}", datetime(year, month, 1).strftime("%B %Y")))
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    return found
