"""A check that could not be made is not reported as a difference."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from billing.reconciliation.differences import NOT_THERE, Difference, Report, outcomes_of
from billing.reconciliation.rendering import as_text

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DIFFERENCE = Difference("journal", "ten_a", "req-1", NOW, 1, 0)


@pytest.mark.parametrize(
    ("differences", "why_not", "says"),
    [
        ([], {}, "The books balance."),
        ([], {"stripe": NOT_THERE + "payment provider"}, "The books balance."),
        ([DIFFERENCE], {}, "The books do not balance."),
        ([DIFFERENCE], {"spools": "engine at x could not be asked"}, "The books do not balance."),
        (
            [],
            {"spools": "engine at x could not be asked"},
            "Not every book could be compared; those that could balance.",
        ),
    ],
)
def test_the_last_line_says_what_was_found(
    differences: list[Difference], why_not: dict[str, str], says: str
) -> None:
    outcomes = outcomes_of(differences, why_not)
    report = Report("rcn_1", NOW, NOW, NOW, NOW, outcomes, len(differences), differences)
    assert as_text(report).splitlines()[-1] == says
    assert report.balanced == (says == "The books balance.")
