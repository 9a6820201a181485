"""Assigns numbers to usage events within an incarnation, so that the ledger can tell which it lacks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from engine.protocol import EventNumber, UsageEvent


class EventNumbering:
    """Numbers one incarnation's events, from 1 on. Belongs to the thread that writes the journal."""

    def __init__(
        self,
        on_stamped: Callable[[int], None],
        on_written: Callable[[int, int], None],
        issued: int = 0,
        tokens: int = 0,
    ) -> None:
        """`on_stamped` receives each number before its event is written; `on_written` receives the last
        number and the tokens up to it, once those events are written.
        """
        self.issued = issued
        self.tokens = tokens
        self._on_stamped = on_stamped
        self._on_written = on_written

    def stamp(self, event: UsageEvent, tokens: int) -> UsageEvent:
        """Returns the event with the next number. `tokens`: completion tokens that no earlier event has."""
        self.issued += 1
        self._on_stamped(self.issued)
        before = self.tokens
        self.tokens += tokens
        return msgspec.structs.replace(event, number=EventNumber(self.issued, before, self.tokens))

    def skip(self, tokens: int, stamped: int) -> None:
        """Uses up a number for usage that cannot be written, so that reconciliation finds it missing.
        `stamped`: the last number that an event may have.
        """
        self.issued = max(self.issued, stamped) + 1
        self.tokens += tokens

    def written(self) -> None:
        """Reports that all stamped events are in Redis or on the disk."""
        self._on_written(self.issued, self.tokens)
