"""Compares what was promised with what was delivered: shares, error budgets, burn rates, credit.

This is pure arithmetic over counts and terms, in integers where money depends on it. The windows and
thresholds are those of multi-window, multi-burn-rate alerts (Beyer et al., "The Site Reliability Workbook",
O'Reilly 2018, chapter 5); Prometheus rules and tenants' reports use the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sla.measures import Counts
from tenants.tier_terms import MILLION, Terms


@dataclass(frozen=True, slots=True)
class BurnAlert:
    """An alert that a month's budget burns more than `factor` times too fast, over both windows."""

    severity: str
    long_minutes: int
    short_minutes: int
    factor: float


BURN_ALERTS = (
    BurnAlert("page", 60, 5, 14.4),
    BurnAlert("page", 360, 30, 6.0),
    BurnAlert("ticket", 4320, 360, 1.0),
)
WINDOWS = tuple(
    sorted({minutes for alert in BURN_ALERTS for minutes in (alert.long_minutes, alert.short_minutes)})
)
"""The lengths of the windows in minutes."""


def delivered_ppm(good: int, total: int) -> int | None:
    """Returns millionths, rounded down so that rounding keeps no promise; None without a total."""
    return good * MILLION // total if total else None


def credit_percent(terms: Terms, counts: Counts) -> int:
    """Returns the percent of the month's bill that the plan's table gives for the worse of the delivered
    availability and output rate, where they were promised; zero if nothing was served or nothing was missed.
    """
    missed = [
        delivered
        for promised, delivered in (
            (terms.availability_ppm, delivered_ppm(counts.requests - counts.failed, counts.requests)),
            (terms.output_rate_ppm, delivered_ppm(counts.rated_fast, counts.rated)),
        )
        if delivered is not None and delivered < promised
    ]
    if not missed:
        return 0
    return max((percent for below, percent in terms.credits if min(missed) < below), default=0)


Part = tuple[Terms, Counts]
"""A part of a month: the terms in force, and what was counted meanwhile."""


def credit_over(parts: Sequence[Part]) -> int:
    """Returns the percent of the month's bill: each part's percent weighted by its requests, rounded up."""
    total = sum(counts.requests for _, counts in parts)
    owed = sum(credit_percent(terms, counts) * counts.requests for terms, counts in parts)
    return -(-owed // total) if total else 0


def budget_over(parts: Sequence[Part]) -> ErrorBudget | None:
    """Returns the budget of all parts together; None if no part promises availability."""
    budgets = [budget for terms, counts in parts if (budget := error_budget(terms, counts)) is not None]
    if not budgets:
        return None
    return ErrorBudget(sum(budget.allowed for budget in budgets), sum(budget.spent for budget in budgets))


def kept(terms: Terms, counts: Counts) -> bool:
    """Whether every promise was kept."""
    available = delivered_ppm(counts.requests - counts.failed, counts.requests)
    fast = delivered_ppm(counts.rated_fast, counts.rated)
    return all(
        delivered is None or delivered >= promised
        for promised, delivered in ((terms.availability_ppm, available), (terms.output_rate_ppm, fast))
    )


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """The failures that the promised availability allows."""

    allowed: int
    spent: int

    @property
    def remaining(self) -> int:
        return max(0, self.allowed - self.spent)


def error_budget(terms: Terms, counts: Counts) -> ErrorBudget | None:
    """Returns the budget; None if no availability is promised."""
    if not terms.availability_ppm:
        return None
    return ErrorBudget(counts.requests * (MILLION - terms.availability_ppm) // MILLION, counts.failed)


def burn_rate(terms: Terms, requests: int, failed: int) -> float | None:
    """Returns how many times too fast the budget burns; None without requests or a promise."""
    allowed = MILLION - terms.availability_ppm
    if not requests or not terms.availability_ppm or not allowed:
        return None
    return failed / requests * MILLION / allowed
