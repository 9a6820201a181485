"""Says how long each reasoning effort lets a model think."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenization.reasoning.formats import ReasoningFormat

DEFAULT_BUDGETS: Mapping[str, int | None] = {
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": None,
}
"""Tokens of thinking by OpenAI's `reasoning_effort`; None: no bound."""


@dataclass(frozen=True, slots=True)
class OfferedReasoning:
    """How the base model delimits its thinking, and the budget of each effort."""

    format: ReasoningFormat
    budgets: Mapping[str, int | None]

    @classmethod
    def of(cls, format: ReasoningFormat, budgets: Mapping[str, int | None] | None = None) -> OfferedReasoning:
        """`budgets` replaces the defaults of the efforts that it names."""
        return cls(format, {**DEFAULT_BUDGETS, **(budgets or {})})
