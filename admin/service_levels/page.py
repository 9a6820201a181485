"""Gathers the service levels page: targets, delivered values and error budgets of a month."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from admin import formatting
from admin.badge import Badge
from sla.service import SlaReport, SlaReports

MONTHS = 12
_CLASSES = {"priority": "Priority", "default": "Default", "flex": "Flex"}
_ALERTS = {"page": Badge("Burning fast", "bad"), "ticket": Badge("Burning", "warn")}


@dataclass(frozen=True)
class Promise:
    title: str
    promised: str
    delivered: str
    state: Badge
    note: str


@dataclass(frozen=True)
class Budget:
    """Of failures that the promise allows."""

    allowed: str
    spent: str
    share: int
    """Per cent of it that is spent, at most 100."""
    is_over: bool


@dataclass(frozen=True)
class ClassReport:
    id: str
    title: str
    state: Badge
    requests: str
    failed: str
    promises: list[Promise]
    first_token: list[tuple[str, str]]
    output_rate: list[tuple[str, str]]
    budget: Budget | None
    burns: list[tuple[str, str]]
    alert: Badge | None
    credit: str | None


@dataclass(frozen=True)
class SlaMonth:
    month: str
    final: bool
    plan: str
    classes: list[ClassReport]
    months: list[tuple[str, str]]
    """To choose from: this one and those before."""


class SlaPage:
    """Gathers the page."""

    def __init__(self, reports: SlaReports) -> None:
        self._reports = reports

    async def gather(self, tenant_id: str, month: str | None) -> SlaMonth:
        """Raises InvalidMonth, DatabaseUnavailable."""
        report = await self.report(tenant_id, month)
        classes = [_class(one) for one in report["data"]]
        return SlaMonth(report["month"], report["final"], report["plan"], classes, _months(report["month"]))

    async def report(self, tenant_id: str, month: str | None) -> SlaReport:
        """As the API has it."""
        return await self._reports.report(tenant_id, month)


def _class(one: Mapping[str, Any]) -> ClassReport:
    availability, rate, first = one["availability"], one["output_rate"], one["time_to_first_token"]
    quiet = not one["requests"]
    state = Badge("No requests", "off") if quiet else _kept(one["kept"])
    tier = one["service_tier"]
    return ClassReport(
        id=tier,
        title=_CLASSES.get(tier, tier),
        state=state,
        requests=f"{one['requests']:,}",
        failed=f"{one['failed']:,}",
        promises=[
            _promise("Availability", availability, "of requests succeeded"),
            _output_speed(rate),
            Promise(
                "Time to first token",
                "No target",
                _share(first["in_time"]),
                Badge("No target", "off"),
                f"within {first['target_ms']:,} ms",
            ),
        ],
        first_token=[(f"p{at}", _with(first[f"p{at}_ms"], "ms")) for at in (50, 95, 99)],
        output_rate=[(f"p{at}", _with(rate[f"p{at}_tokens_per_second"], "tokens/s")) for at in (50, 95, 99)],
        budget=_budget(one["error_budget"]),
        burns=_burns(one["burn_rates"]),
        alert=None if one["burn_rates"] is None else _ALERTS.get(one["burn_rates"]["alert"] or ""),
        credit=f"{one['credit_percent']:g} %" if one["credit_percent"] else None,
    )


def _promise(title: str, found: Mapping[str, Any], note: str) -> Promise:
    promised, delivered = found["promised"], found["delivered"]
    if promised is None:
        return Promise(title, "No target", _share(delivered), Badge("No target", "off"), note)
    if delivered is None:
        return Promise(title, _share(promised), formatting.NOTHING, Badge("No requests", "off"), note)
    return Promise(title, _share(promised), _share(delivered), _kept(delivered >= promised), note)


def _output_speed(found: Mapping[str, Any]) -> Promise:
    least = found["tokens_per_second"]
    if not least:
        return Promise(
            "Output speed", "No target", formatting.NOTHING, Badge("No target", "off"), "no minimum set"
        )
    return _promise("Output speed", found, f"of responses at {least:g} tokens/s or more")


def _kept(kept: bool) -> Badge:
    return Badge("Met", "good") if kept else Badge("Missed", "bad")


def _budget(found: Mapping[str, Any] | None) -> Budget | None:
    if found is None:
        return None
    allowed, spent = found["allowed"], found["spent"]
    share = min(100, round(100 * spent / allowed)) if allowed else (100 if spent else 0)
    return Budget(f"{allowed:,}", f"{spent:,}", share, spent > allowed)


def _burns(found: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """How many times faster than the month allows, by the last so many minutes."""
    if found is None:
        return []
    return [
        (_width(one["minutes"]), formatting.NOTHING if one["rate"] is None else f"{one['rate']:g} ×")
        for one in found["windows"]
    ]


def _width(minutes: int) -> str:
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h" if hours < 24 else f"{hours // 24} d"


def _share(value: float | None) -> str:
    """Of promises the last digit counts: 99.95 % is not 100 %."""
    if value is None:
        return formatting.NOTHING
    return f"{value * 100:.4f}".rstrip("0").rstrip(".") + " %"


def _with(value: float | None, unit: str) -> str:
    return formatting.NOTHING if value is None else f"{value:,.0f} {unit}"


def _months(selected: str) -> list[tuple[str, str]]:
    now = datetime.now(UTC)
    year, month = now.year, now.month
    found = []
    for _ in range(MONTHS):
        found.append(f"{year:04d}-{month:02d}")
        year, month = (year, month - 1) if month > 1 else (year - 1, 12)
    if selected not in found:
        found.append(selected)
    return [(one, datetime.strptime(one, "%Y-%m").strftime("%B %Y")) for one in found]
