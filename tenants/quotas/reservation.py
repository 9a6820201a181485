"""Defines a request's reservation of its limits, and the state of a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from tenants.limits.kinds import Amounts, Limit, RateView
from tenants.quotas.plan import CompiledPlan

UsageReader = Callable[[str, Limit, datetime], Awaitable[int]]
"""(tenant_id, limit, start of its window) -> usage since, from the ledger. Raises DatabaseUnavailable."""


@dataclass(slots=True, eq=False)
class Reservation:
    """What a request has reserved of its limits until it is settled. Created by `Quotas.reserve`."""

    request_id: str
    worst: Amounts
    expected: Amounts
    parts: int = 1
    plan: CompiledPlan | None = field(default=None, repr=False)
    """None if nothing is counted."""
    within_contract: bool = True
    requests: RateView | None = None
    tokens: RateView | None = None
    """How far the caller is from the tightest limit of each kind."""
    local: bool = False
    """Whether it was granted from this process's share of the limits, because Redis was unreachable."""
    began: float = 0.0
    """Start time by the local share's clock, if it is local."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit and its current usage."""

    limit: Limit
    used: int | None
    """For a rate, what has not drained yet. None if a budget has no count and the ledger is unreachable."""
    held: int
    """Reserved by open requests, of a budget or as concurrency slots."""
    resets_at: datetime | None
    """When its usage returns to zero if nothing is added; None for concurrency limits and the prepaid
    balance.
    """

    @property
    def remaining(self) -> int | None:
        if self.used is None:
            return None
        return max(0, self.limit.amount - self.used - self.held)
