"""The words of a reconciliation: its checks, what each came to, and one difference. Plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

CHECKS = {
    "journal": "entries that should long be in the ledger are",
    "spools": "what waits on engines' disks is on its way, says what the ledger does, and is whole",
    "event_numbers": "every usage event that engines have numbered has come in",
    "dead_letters": "every entry of the journal made a row",
    "prices": "records carry the prices of the version they name, and name one",
    "charges": "storage and calibrations are charged once, by what was stored and done",
    "rollups": "sums of minutes, hours and days are those of the rows",
    "usage_api": "the usage API says what the rows come to",
    "costs_api": "the costs API says what rows, charges and reversals come to",
    "invoices": "invoices are what the ledger says, priced anew",
    "meter_events": "hours are planned for the payment provider, and no event waits for a person",
    "stripe": "the payment provider has metered what was sent",
    "stripe_invoices": "it asks for what invoices and credit notes say, and was paid what is noted",
}
"""By name, what holds when it finds nothing. In the order in which they are made."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two books that do not say the same of one thing."""

    check: str
    tenant_id: str
    """Empty: nobody's."""
    what: str
    at: datetime | None
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """What a book has yet to be told, and will be: no difference."""

    tenant_id: str
    what: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check came to."""

    differences: int
    why_not: str = ""
    """Why it was not made, or not with all; empty: it was."""
    on_its_way: int = 0
    """What was merely not there yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """A reconciliation as it was kept."""

    id: str
    started_at: datetime
    ended_at: datetime
    start: datetime
    end: datetime
    outcomes: Mapping[str, Outcome]
    num_differences: int
    differences: Sequence[Difference]
    on_their_way: Sequence[OnItsWay] = ()
    """The oldest, first; outcomes have how many there are."""

    @property
    def balanced(self) -> bool:
        """Every check that applies was made, and found nothing."""
        return not self.num_differences and not any(
            outcome.why_not and not outcome.why_not.startswith(NOT_THERE)
            for outcome in self.outcomes.values()
        )

    @property
    def verdict(self) -> str:
        """In one sentence. What could not be asked is no difference."""
        if self.balanced:
            return "The books balance"
        if self.num_differences:
            return "The books do not balance"
        return "Not every book could be compared; those that could balance"


NOT_THERE = "there is no "
"""What a reason begins with that is no failure: what would be compared does not exist here."""


def outcomes_of(
    differences: Sequence[Difference],
    why_not: Mapping[str, str],
    on_their_way: Mapping[str, int] | None = None,
) -> dict[str, Outcome]:
    """`on_their_way`: how much, by check."""
    counts = Counter(difference.check for difference in differences)
    waiting = on_their_way or {}
    return {check: Outcome(counts[check], why_not.get(check, ""), waiting.get(check, 0)) for check in CHECKS}
