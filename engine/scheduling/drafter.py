"""Defines what proposes drafts: guesses of the tokens that follow, which a step verifies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from engine.lora.draft_adapters import DraftAdapter
from engine.request import Request


class DraftKind(StrEnum):
    """Where drafts come from."""

    GRAMMAR = "grammar"
    """Forced by the grammar that a request follows."""
    TEXT = "text"
    """They followed the same tokens before."""
    ADAPTER = "adapter"
    """A draft adapter guessed them in the step before."""


class Proposal(NamedTuple):
    """What may be computed with a request's last token."""

    token_ids: list[int]
    """Drafts."""
    num_placeholders: int = 0
    """Places behind them in which the request's draft adapter guesses what follows."""
    num_forced: int = 0
    """The first so many drafts are forced by the grammar."""
    kind: DraftKind = DraftKind.TEXT
    """Of the other drafts."""
    guessed_by: str = ""
    """Digest of the draft adapter that guessed them, if one did."""


ReadyAdapter = Callable[[Request], DraftAdapter | None]
"""Returns the draft adapter that can guess for a request now."""


class Drafter(Protocol):
    """Proposes drafts for running requests, and learns which of them were drawn.

    Requests for which `ready` returns a draft adapter may have placeholders.
    """

    def is_waiting(self, requests: Sequence[Request], ready: ReadyAdapter) -> bool:
        """Returns whether the step in flight should be committed before the next one is planned: drafts or
        placeholders are likely to be worth that.
        """
        ...

    def learn(self, requests: Sequence[Request]) -> None:
        """Takes in the texts of running requests as they stand. Called once before each step is planned,
        while another runs if one does.
        """
        ...

    def propose(
        self, requests: Sequence[Request], num_open: int, ready: ReadyAdapter
    ) -> dict[Request, Proposal]:
        """Returns drafts and placeholders for some requests, `num_open` tokens at most. Every request's last
        token is known.

        They only follow the last token of a request that computes nothing else.
        """
        ...

    def note_verified(
        self, request: Request, num_drafts: int, num_accepted: int, guesses: Sequence[int]
    ) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too, before the request
        has these. `guesses` are those of its placeholders: they follow the token drawn behind all its drafts.
        """
        ...

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts and placeholders, and known tokens to compute."""
        ...

    def forget(self, request: Request) -> None:
        """Drops what it keeps of a request that has ended."""
        ...


class NoDrafts:
    """Proposes nothing."""

    def is_waiting(self, requests: Sequence[Request], ready: ReadyAdapter) -> bool:
        """Returns False."""
        return False

    def learn(self, requests: Sequence[Request]) -> None:
        """Does nothing."""

    def propose(
        self, requests: Sequence[Request], num_open: int, ready: ReadyAdapter
    ) -> dict[Request, Proposal]:
        """Returns nothing."""
        return {}

    def note_verified(
        self, request: Request, num_drafts: int, num_accepted: int, guesses: Sequence[int]
    ) -> None:
        """Does nothing."""

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Does nothing."""

    def forget(self, request: Request) -> None:
        """Does nothing."""
