"""Keeps what draft adapters guessed for running requests until it is drafted, and measures how it fared.

All of it is by tenant, adapter and draft adapter: nothing that one tenant's requests teach changes what is
drafted for another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine.speculation.acceptance import MAX_KEYS

GuessKey = tuple[str, str | None, str]
"""Tenant, digest of the adapter (None: the base), digest of the draft adapter."""

_PRIOR = 0.8
"""Accepted of those whose turn came, before any was measured. Good ones would else never be tried where
tokens are dear; what wrong ones cost is limited."""
_PRIOR_WEIGHT = 3.0
_REMEMBERED = 128.0
"""Guesses whose turn came; beyond them the past counts less."""
_REST_STEPS = 256
"""Where guesses were not worth their time for so many steps, half of what was measured is forgotten: what the
requests are about may have changed. The loss limit bounds what trying again costs."""


class _Measured:
    """How often guesses were accepted, by how far ahead they were."""

    __slots__ = ("accepted", "num_resting", "reached")

    def __init__(self) -> None:
        self.reached: list[float] = []
        """Whose turn came: all before them were accepted."""
        self.accepted: list[float] = []
        self.num_resting = 0

    def scale(self, factor: float) -> None:
        self.reached = [count * factor for count in self.reached]
        self.accepted = [count * factor for count in self.accepted]


class GuessAcceptance:
    """Counts of verified guesses; the keys that had some last are kept."""

    def __init__(self) -> None:
        self._measured: OrderedDict[GuessKey, _Measured] = OrderedDict()

    def chances(self, key: GuessKey, num_guesses: int, first: int = 0) -> list[float]:
        """Returns the chance of each guess that it and all from the `first` on are accepted, those before
        being drawn already. `num_guesses` counts these too.
        """
        one = self._measured.get(key)
        found, chance, rate = [], 1.0, _PRIOR
        for place in range(num_guesses):
            # Where little is known of a place, it is taken to be no worse than the one before.
            rate = max(rate, _PRIOR)
            if one is not None and place < len(one.reached):
                rate = (one.accepted[place] + _PRIOR_WEIGHT * rate) / (one.reached[place] + _PRIOR_WEIGHT)
            if place >= first:
                chance *= rate
                found.append(chance)
        return found

    def add(self, key: GuessKey, first: int, num_drafts: int, num_accepted: int) -> None:
        """Notes what became of a row's drafts, the first of which was the guess number `first`."""
        one = self._kept(key)
        one.num_resting = 0
        missing = first + num_drafts - len(one.reached)
        one.reached += [0.0] * missing
        one.accepted += [0.0] * missing
        for place in range(min(num_drafts, num_accepted + 1)):
            one.reached[first + place] += 1
            one.accepted[first + place] += place < num_accepted
        if max(one.reached) > _REMEMBERED:
            one.scale(0.5)

    def rest(self, key: GuessKey) -> None:
        """Notes a step in which nothing was guessed for a request that could have had placeholders."""
        one = self._measured.get(key)
        if one is None:
            return
        one.num_resting += 1
        if one.num_resting >= _REST_STEPS:
            one.num_resting = 0
            one.scale(0.5)

    def _kept(self, key: GuessKey) -> _Measured:
        one = self._measured.setdefault(key, _Measured())
        self._measured.move_to_end(key)
        if len(self._measured) > MAX_KEYS:
            self._measured.popitem(last=False)
        return one


class Guessed(NamedTuple):
    """What was guessed for a request in one step."""

    key: GuessKey
    position: int
    """Length of the request at which the first guess would follow."""
    token_ids: list[int]

    def num_past(self, token_ids: Sequence[int]) -> int | None:
        """Returns how many of the guesses a request has drawn since; None where it has drawn others, or not
        come as far as the first one.
        """
        num = len(token_ids) - self.position
        if not 0 <= num < len(self.token_ids) or list(token_ids[self.position :]) != self.token_ids[:num]:
            return None
        return num
