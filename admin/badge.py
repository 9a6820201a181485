"""Defines the badge: the one or two words in colour that say what state something is in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Badge:
    word: str
    tone: str
    """`good`, `busy`, `warn`, `bad` or `off`: the style sheet's colours."""
