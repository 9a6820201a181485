"""A reservation as its request holds it, and limits as others see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from tenants.limits.kinds import Amounts, Limit, RateView
from tenants.quotas.plan import CompiledPlan

Seed = Callable[[str, Limit, datetime], Awaitable[int]]
"""(tenant_id, limit, start of its window) -> what the ledger has of it since. Raises DatabaseUnavailable."""


@dataclass(slots=True, eq=False)
class Reservation:
    """What a request holds of its limits until it is settled. Made by `Quotas.reserve`."""

    request_id: str
    worst: Amounts
    expected: Amounts
    parts: int = 1
    plan: CompiledPlan | None = field(default=None, repr=False)
    """None: nothing is counted."""
    within_contract: bool = True
    requests: RateView | None = None
    tokens: RateView | None = None
    """How far the caller is from the tightest limit of each kind."""
    local: bool = False
    """Judged by this process's share of the limits, because Redis is away."""
    began: float = 0.0
    """By the local share's clock, where it is local."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit, and how much of it is taken now."""

    limit: Limit
    used: int | None
    """Of a rate, what has not drained yet. None: of a budget that nothing was asked of lately."""
    held: int
    """By requests that are open, in a budget or as places."""
    resets_at: datetime | None
    """When nothing of it will be used any more, if nothing is added; None for places."""

    @property
    def remaining(self) -> int | None:
        if self.used is None:
            return None
        return max(0, self.limit.amount - self.used - self.held)
