"""Limits what refused drafts may cost each tenant on each adapter, whatever the estimates say.

Chances of acceptance are estimates, and wrong ones cost time: those of a tenant's first drafts, or where a
text begins to differ from all before. So drafts are paid for. All is counted in tokens of a step without
drafts: a draft costs what it adds to its step, an accepted one is worth a token, and every token drawn earns
`INCOME`. A tenant whose drafts on an adapter are never accepted loses that share of its time, and no more.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from engine.speculation.acceptance import MAX_KEYS

FIRST = 0.5
"""Tokens that each tenant and adapter begin with."""
INCOME = 0.005
"""Per token drawn."""
MOST = 4.0
"""Tokens kept: so many are lost when a text that was guessed well is not any more."""
OF_GUESSES = 8.0
"""Tokens that a tenant and adapter begin with on each draft adapter, and the most that are kept. Its guesses
cost twice, when they are made and when they are verified; and it was trained for this, so that a bad
beginning is more likely to be chance."""


_K = TypeVar("_K")


class LossLimit(Generic[_K]):
    """Balances by key: tenant and adapter, and draft adapter if any. Those that had drafts last are kept."""

    def __init__(self, first: float = FIRST, most: float = MOST) -> None:
        """`first`: tokens that each key begins with; `most`: that it keeps."""
        self._balances: OrderedDict[_K, float] = OrderedDict()
        self._first = first
        self._most = most

    def balance(self, key: _K) -> float:
        """Returns the tokens that drafts may cost now."""
        return self._balances.get(key, self._first)

    def add(self, key: _K, tokens: float) -> None:
        """Adds what was earned, or subtracts a cost."""
        self._balances[key] = min(self._most, self.balance(key) + tokens)
        self._balances.move_to_end(key)
        if len(self._balances) > MAX_KEYS:
            self._balances.popitem(last=False)
