"""Matches the claims of a token with the conditions of a federation rule.

A condition on text matches it exactly, case included; with `*` at its end, any text that begins with it. A
claim that is a list matches if one of its values does. All conditions must match.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenants.validation import is_printable

MAX_MATCHERS = 20
MAX_TEXT = 500
ANY_ENDING = "*"


def check_matchers(matchers: Mapping[str, Any]) -> None:
    """Raises ValueError naming the field."""
    if not 1 <= len(matchers) <= MAX_MATCHERS:
        raise ValueError(f"attribute_matchers must have 1 to {MAX_MATCHERS} conditions, not {len(matchers)}")
    for claim, wanted in matchers.items():
        if not claim or len(claim) > MAX_TEXT or not is_printable(claim):
            raise ValueError(f"attribute_matchers: {claim[:80]!r} is not the name of a claim")
        if isinstance(wanted, str):
            _check_text(claim, wanted)
        elif not isinstance(wanted, bool | int):
            raise ValueError(f"attribute_matchers: {claim[:80]!r} must be text, an integer or a boolean")


def _check_text(claim: str, wanted: str) -> None:
    if not wanted.rstrip(ANY_ENDING) or len(wanted) > MAX_TEXT or not is_printable(wanted):
        raise ValueError(
            f"attribute_matchers: {claim[:80]!r} must be 1 to {MAX_TEXT} printable characters besides '*'"
        )
    if ANY_ENDING in wanted[:-1]:
        raise ValueError(f"attribute_matchers: {claim[:80]!r} can have '*' at its end only")


def claims_match(matchers: Mapping[str, Any], claims: Mapping[str, Any]) -> bool:
    """Whether all conditions match. None match without a condition."""
    return bool(matchers) and all(
        claim in claims and _matches(wanted, claims[claim]) for claim, wanted in matchers.items()
    )


def _matches(wanted: Any, found: Any) -> bool:
    if isinstance(found, list):
        return any(_matches(wanted, one) for one in found if not isinstance(one, list))
    if isinstance(wanted, str) and wanted.endswith(ANY_ENDING):
        return isinstance(found, str) and found.startswith(wanted[:-1])
    return type(wanted) is type(found) and bool(wanted == found)  # true is not 1
