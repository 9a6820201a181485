"""Defines the results of a reconciliation: its checks, their outcomes, and differences. Plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

CHECKS = {
    "journal": "journal entries reach the ledger in time",
    "spools": "events on engines' disks are on their way, whole, and agree with the ledger",
    "event_numbers": "every numbered usage event of the engines arrived",
    "dead_letters": "every journal entry became a ledger row",
    "prices": "records name a version of the price list and carry its prices",
    "charges": "storage and calibrations are charged once, for what was stored and done",
    "rollups": "sums by minute, hour and day equal the ledger's rows",
    "shares": "what owners of shared adapters earned equals their part of the users' surcharges",
    "deletions": "objects whose rows were deleted are gone from the object store within a day",
    "usage_api": "the usage API reports what the ledger's rows add up to",
    "costs_api": "the costs API reports what rows, charges and reversals add up to",
    "invoices": "invoices equal the ledger, priced again",
    "meter_events": "hours are planned for the payment provider, and no event needs an operator",
    "stripe": "the payment provider has metered what was sent",
    "stripe_invoices": "the provider's invoices and payments equal ours",
}
"""What each check proves when it finds nothing, by name, in the order in which the checks run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two books that disagree on one thing."""

    check: str
    tenant_id: str
    """Empty if it belongs to no tenant."""
    what: str
    at: datetime | None
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """What a book does not have yet but will get: not a difference."""

    tenant_id: str
    what: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check."""

    differences: int
    why_not: str = ""
    """Why the check did not run, or not completely; empty if it did."""
    on_its_way: int = 0
    """The number of things that were merely not there yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """The stored result of a reconciliation."""

    id: str
    started_at: datetime
    ended_at: datetime
    start: datetime
    end: datetime
    outcomes: Mapping[str, Outcome]
    num_differences: int
    differences: Sequence[Difference]
    on_their_way: Sequence[OnItsWay] = ()
    """The oldest ones; the outcomes have their number."""

    @property
    def balanced(self) -> bool:
        """Whether every applicable check ran and found nothing."""
        return not self.num_differences and not any(
            outcome.why_not and not outcome.why_not.startswith(NOT_THERE)
            for outcome in self.outcomes.values()
        )

    @property
    def verdict(self) -> str:
        """Returns the result in one sentence. A check that could not run is no difference."""
        if self.balanced:
            return "The books balance"
        if self.num_differences:
            return "The books do not balance"
        return "Not every book could be compared; those that could balance"


NOT_THERE = "there is no "
"""The beginning of a reason that is no failure: what would be compared does not exist here."""


def outcomes_of(
    differences: Sequence[Difference],
    why_not: Mapping[str, str],
    on_their_way: Mapping[str, int] | None = None,
) -> dict[str, Outcome]:
    """Returns the outcome of each check. `on_their_way` counts by check."""
    counts = Counter(difference.check for difference in differences)
    waiting = on_their_way or {}
    return {check: Outcome(counts[check], why_not.get(check, ""), waiting.get(check, 0)) for check in CHECKS}
