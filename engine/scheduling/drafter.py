"""Defines what proposes drafts: guesses of the tokens that follow, which a step verifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.request import Request


class Drafter(Protocol):
    """Proposes drafts for running requests, and learns which of them were drawn."""

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns whether the step in flight should be committed before the next one is planned: drafts are
        likely to be worth that.
        """
        ...

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns drafts for some requests, `num_open` tokens at most. Every request's last token is known.

        Drafts only follow the last token of a request that computes nothing else.
        """
        ...

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too."""
        ...

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts, and known tokens to compute."""
        ...

    def forget(self, request: Request) -> None:
        """Drops what it keeps of a request that has ended."""
        ...


class NoDrafts:
    """Proposes nothing."""

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns False."""
        return False

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns nothing."""
        return {}

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Does nothing."""

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Does nothing."""

    def forget(self, request: Request) -> None:
        """Does nothing."""
