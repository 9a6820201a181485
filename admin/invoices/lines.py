"""Formats the lines of a bill by model for the pages: cents first, with the exact amount behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from urllib.parse import urlencode

from admin import formatting
from billing.invoices.lines import Line
from billing.invoices.views import dollars
from billing.rates import MICRO_USD_PER_CENT

_OF_LEDGER = ("usage", "storage", "calibration")
_ITEMS = {
    "input": "Input tokens",
    "cached_input": "Cached input tokens",
    "output": "Output tokens",
    "surcharge": "Surcharge of the adapter's owner",
}
OTHERS = "Plan, storage and balance"


@dataclass(frozen=True)
class LineRow:
    text: str
    quantity: str
    amount: str
    exact: str
    """With all six decimals, as on the PDF."""
    href: str | None
    """Below the console's root: where the rows behind it are."""


@dataclass(frozen=True)
class LineGroup:
    title: str
    """A model without its version, or `OTHERS`."""
    is_model: bool
    amount: str
    exact: str
    rows: list[LineRow]


def groups_of(lines: Iterable[Line]) -> list[LineGroup]:
    """Returns a group for each model, the most expensive first, then one of everything else."""
    by_title: dict[str, list[Line]] = {}
    others = []
    for line in lines:
        if line.kind == "usage":
            model = str(line.details.get("model", "")).partition("@")[0]
            by_title.setdefault(model or "No model", []).append(line)
        else:
            others.append(line)
    models = sorted(by_title.items(), key=lambda one: (-sum(line.amount for line in one[1]), one[0]))
    groups = [_group(title, found, is_model=True) for title, found in models]
    return [*groups, _group(OTHERS, others, is_model=False)] if others else groups


def _group(title: str, lines: list[Line], *, is_model: bool) -> LineGroup:
    total = sum(line.amount for line in lines)
    has_versions = len({line.details.get("model") for line in lines}) > 1
    rows = [_row(line, has_versions) for line in lines]
    return LineGroup(title, is_model, rounded(total), exact(total), rows)


def _row(line: Line, has_versions: bool) -> LineRow:
    return LineRow(
        _text(line, has_versions),
        _quantity(line),
        rounded(line.amount),
        exact(line.amount),
        _usage_link_of(line),
    )


def _text(line: Line, has_versions: bool) -> str:
    if line.kind != "usage":
        return line.description
    item = line.details.get("item", "")
    version = str(line.details.get("model", "")).partition("@")[2] if has_versions else ""
    words = [_ITEMS.get(item, item), line.details.get("service_tier", ""), version and f"version {version}"]
    late = f"{line.month:%B %Y}, recorded late: " if "recorded late" in line.description else ""
    return late + ", ".join(str(word) for word in words if word)


def rounded(amount: int) -> str:
    """To the cent, half a cent up; less than half a cent is said to be."""
    cents = (abs(amount) + MICRO_USD_PER_CENT // 2) // MICRO_USD_PER_CENT
    sign = "−" if amount < 0 else ""
    if amount and not cents:
        return f"{sign}<$0.01"
    return f"{sign}${cents // 100:,}.{cents % 100:02}"


def exact(amount: int) -> str:
    """With all six decimals."""
    return f"{'−' if amount < 0 else ''}${dollars(abs(amount))}"


def _usage_link_of(line: Line) -> str | None:
    """Where the usage that a line is of is shown: the month's, of its model and class."""
    if line.kind not in _OF_LEDGER:
        return None
    details = line.details if line.kind == "usage" else {}
    return _usage_link(line.month, details.get("model", ""), details.get("service_tier", ""))


@lru_cache(maxsize=4096)
def _usage_link(month: date, model: str, tier: str) -> str:
    """Lines of input, cached input and output have one: escaping it takes longer than all else of a line."""
    fields = {"month": f"{month:%Y-%m}", "show": "cost", "model": model, "tier": tier}
    return f"/usage?{urlencode({name: value for name, value in fields.items() if value})}"


def _quantity(line: Line) -> str:
    quantity = line.details.get("quantity")
    if quantity is None:
        return ""
    if line.kind == "storage":
        return f"{formatting.short(quantity / 10**9)} GB-days"
    if line.kind == "calibration":
        return f"{quantity:,} {'job' if quantity == 1 else 'jobs'}"
    return f"{quantity:,}".replace("-", "−")
