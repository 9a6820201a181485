"""Measures how often drafts are accepted, and estimates the chances of the next ones."""

from __future__ import annotations

from collections import OrderedDict

from engine.speculation.suffixes import Guess

MAX_KEYS = 4096
_PRIOR = {0: 0.5, 1: 0.7, 2: 0.85}
"""By length of the match: accepted of those whose turn came, before any was measured."""
_PRIOR_WEIGHT = 4.0
_REMEMBERED = 128.0
"""Drafts whose turn came; beyond them the past counts less."""

Key = tuple[str, str | None]
"""Tenant and adapter digest: what one tenant's texts teach is kept from the others."""


def _length_class(match_len: int) -> int:
    return (match_len > 4) + (match_len > 9)


class Acceptance:
    """Counts of verified drafts, by tenant, adapter and the length of the match that they came from."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[Key, int], list[float]] = OrderedDict()

    def rate(self, key: Key, match_len: int) -> float:
        """Returns the share of drafts that are accepted when all before them were."""
        length = _length_class(match_len)
        accepted, reached = self._counts.get((key, length), (0.0, 0.0))
        return (accepted + _PRIOR_WEIGHT * _PRIOR[length]) / (reached + _PRIOR_WEIGHT)

    def add(self, key: Key, match_len: int, num_drafts: int, num_accepted: int) -> None:
        """Notes what became of a row's drafts."""
        place = (key, _length_class(match_len))
        counts = self._counts.setdefault(place, [0.0, 0.0])
        counts[0] += num_accepted
        counts[1] += min(num_drafts, num_accepted + 1)
        if counts[1] > _REMEMBERED:
            counts[0], counts[1] = counts[0] / 2, counts[1] / 2
        self._counts.move_to_end(place)
        if len(self._counts) > MAX_KEYS:
            self._counts.popitem(last=False)

    def chances(self, key: Key, guess: Guess) -> list[float]:
        """Returns the chance of each token of a guess that it and all before it are accepted."""
        rate = self.rate(key, guess.match_len)
        found, chance = [], 1.0
        for share in guess.shares:
            chance *= rate
            found.append(chance * share)
        return found
